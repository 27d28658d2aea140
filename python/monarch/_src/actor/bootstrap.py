"""See ``monarch._src``."""

from monarch._src import later

_LATER = ("attach_to_workers", "run_worker_loop_forever", "run_worker_loop_until_shutdown", "start_worker_loop_forever")


def __getattr__(name: str):
    return later(__name__, name, _LATER)
