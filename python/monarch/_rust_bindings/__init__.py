"""See ``monarch._src``."""

import monarch._wiring  # noqa: F401
