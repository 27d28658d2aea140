"""Ends with the status that is its first argument: a number, ``none``, ``true`` or a text."""

import sys

sys.exit({"none": None, "true": True}.get(sys.argv[1], int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1]))
