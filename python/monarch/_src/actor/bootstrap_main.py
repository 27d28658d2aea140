"""The main program of a worker: ``python -m monarch._src.actor.bootstrap_main <descriptor>``. See ``monarch._src``."""

import sys


def main() -> None:
    """Runs the worker whose record is where the last argument says: in a descriptor, or at a socket. Does not return.

    The command ``monarch_bootstrap`` too, which may be the program of a ``BootstrapCommand``.
    """
    if len(sys.argv) < 2 or not (sys.argv[-1].isdigit() or "#" in sys.argv[-1]):
        print(
            "monarch_bootstrap: becomes a process of a mesh, and is no use by itself: it is the program of a "
            "BootstrapCommand(...) of spawn_procs(bootstrap_command=...)",
            file=sys.stderr,
        )
        sys.exit(2)
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the script
    from monarch._programs import worker

    worker.main(sys.argv[-1])


if __name__ == "__main__":
    main()
