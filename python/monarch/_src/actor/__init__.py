"""See ``monarch._src``."""
