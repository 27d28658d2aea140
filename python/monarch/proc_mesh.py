"""Old module: what programs of 2025 import from here is in ``monarch.actor``."""

from monarch._notices import deprecated_module
from monarch.actor import *  # noqa: F403

deprecated_module(__name__)
