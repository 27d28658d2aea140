"""Where the output of processes goes: how their lines are named, kept and shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._config import state as configuration
from monarch._runtime import runtime

if TYPE_CHECKING:
    from monarch._calls.future import Future

_DEFAULTS: dict[str, tuple[str, bool | int]] = {
    "enable_file_capture": ("HYPERACTOR_MESH_ENABLE_FILE_CAPTURE", False),
    "prefix_with_rank": ("HYPERACTOR_PREFIX_WITH_RANK", True),
    "tail_log_lines": ("HYPERACTOR_MESH_TAIL_LOG_LINES", 10),  # the table says 0, as the reference; a few say much
}


def _setting(key: str) -> Any:
    """A key of ``monarch.config``. The configuration is not loaded for it as long as nothing is configured."""
    variable, default = _DEFAULTS[key]
    if configuration.changed or variable in os.environ:
        from monarch._config import settings

        wanted = settings.wanted(key)
        return default if wanted is None else wanted
    return default


def output_settings(
    mesh: str, hosts: str | None = None, in_job: str | None = None
) -> Callable[[int, int], tuple[str, int, bool, str, int]]:
    """rank (-1: there are no dimensions), host -> ``launch.Wanted.output`` of that process of a new mesh.

    Args:
        mesh: its name.
        hosts: what the hosts are called; None: it is the one that this process is on.
        in_job: the ``apply_id`` of the job whose hosts these are, where that is known.
    """
    prefix, tail_lines = _setting("prefix_with_rank"), _setting("tail_log_lines")
    log_files = _log_files(hosts, in_job) if _setting("enable_file_capture") else None

    def of(rank: int, host: int = 0) -> tuple[str, int, bool, str, int]:
        return mesh, rank, bool(prefix), "" if log_files is None else log_files(host), int(tail_lines)

    return of


def _log_files(hosts: str | None, in_job: str | None) -> Callable[[int], str]:
    """host -> the path of its log, as ``OutputName`` has it (``output_route.h``).

    `monarch logs` finds those of a job by their names: ``monarch_log_JOB_RUN.log``, where ``JOB`` is ``ID``, or
    ``ID~HOSTS~HOST`` on hosts of a job, and ``RUN`` says which script has written it.
    """
    import tempfile

    user = os.environ.get("USER") or str(os.getuid())
    apply_id = os.environ.get("MONARCH_JOB_ID", "") if in_job is None else in_job
    name = f"monarch_log_{safe_name(apply_id)[:8] or _core.job_id()[:4].hex()}"
    path = os.path.join(tempfile.gettempdir(), user.replace("/", "_"), name)
    return lambda host: f"+{path}" if hosts is None else f"{path}~{safe_name(hosts)}~{host}"


def safe_name(text: str) -> str:
    """As names stand in those of log files."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text)


def set_output(
    nodes: list[int], stream_to_client: bool, aggregate_window_sec: float | None, level: int, on_slow: str
) -> Future[None]:
    """The part of ``ProcMesh.logging_option`` that concerns what is printed; checks all arguments."""
    if aggregate_window_sec is not None and not stream_to_client:
        raise RuntimeError("cannot set aggregate window without streaming to client")
    if not isinstance(level, int) or not 0 <= level <= 255:
        raise ValueError(f"Invalid logging level: {level}")
    if on_slow not in ("block", "drop"):
        raise ValueError(f'on_slow must be "block" or "drop", but is {on_slow!r}')
    window = 0.0 if aggregate_window_sec is None else float(aggregate_window_sec)
    if not 0 <= window <= 1e6:
        raise ValueError(f"aggregate_window_sec must be a number of seconds, but is {aggregate_window_sec!r}")
    runtime.flush()
    return _core.set_output(nodes, bool(stream_to_client), window, on_slow == "drop")
