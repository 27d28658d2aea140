"""Old module: the main program of a worker."""

from monarch._old_spellings import deprecated_module
from monarch._src.actor.bootstrap_main import main

__all__ = ["main"]

deprecated_module(__name__)
