"""The main program of a worker: ``python -m monarch._src.actor.bootstrap_main <descriptor>``. See ``monarch._src``."""

import sys


def main() -> None:
    """Runs the worker whose record is in the file descriptor that the last argument names. Does not return."""
    from monarch._programs import worker

    worker.main([int(sys.argv[-1])])


if __name__ == "__main__":
    main()
