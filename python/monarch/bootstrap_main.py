"""Old module: the main program of a worker."""

from monarch._notices import deprecated_module
from monarch._src.actor.bootstrap_main import main

__all__ = ["main"]

deprecated_module(__name__)
