"""``python -m monarch``: the command ``monarch``, where it is not installed."""

import sys

from monarch.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
