"""What processes print: how it is named, kept and shown; and who says what in Python's ``logging``."""

from __future__ import annotations

import os
import sys

from monarch import _core, _runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._future import Future

# ---- Settings ----

_DEFAULTS: dict[str, tuple[str, bool | int]] = {
    "enable_file_capture": ("HYPERACTOR_MESH_ENABLE_FILE_CAPTURE", False),
    "prefix_with_rank": ("HYPERACTOR_PREFIX_WITH_RANK", True),
    "tail_log_lines": ("HYPERACTOR_MESH_TAIL_LOG_LINES", 0),
}


def _setting(key: str) -> Any:
    """A key of ``monarch.config``. The configuration is not loaded for it as long as nothing is configured."""
    variable, default = _DEFAULTS[key]
    if "monarch._config" in sys.modules or variable in os.environ:
        from monarch import _config

        return _config.get(key)
    return default


def output_settings(mesh: str) -> Callable[[int], dict[str, Any]]:
    """rank (-1: there are no dimensions) -> what the core is told about the output of that process of a new mesh."""
    prefix, tail_lines = _setting("prefix_with_rank"), _setting("tail_log_lines")
    log_files = _log_file_prefix(mesh) if _setting("enable_file_capture") else None

    def of(rank: int) -> dict[str, Any]:
        log_file = "" if log_files is None else f"{log_files}{max(rank, 0)}.log"
        return {"mesh": mesh, "rank": rank, "prefix": prefix, "log_file": log_file, "tail_lines": tail_lines}

    return of


def _log_file_prefix(mesh: str) -> str:
    import tempfile

    user = os.environ.get("USER") or str(os.getuid())
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in mesh)
    name = f"monarch_log_{_core.job_id()[:4].hex()}_{safe}_{os.urandom(3).hex()}_"
    return os.path.join(tempfile.gettempdir(), user.replace("/", "_"), name)


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
    _runtime.flush()
    return _core.set_output(nodes, bool(stream_to_client), window, on_slow == "drop")


# ---- Python's logging: every record says in which actor it was made ----

_watching = False
_level: int | None = None


def watch() -> None:
    """From now on records that are made in actors of this process get the prefix. Does not import ``logging``."""
    global _watching
    if _watching:
        return
    _watching = True
    if "logging" in sys.modules:
        import logging  # waits if another thread has only begun to import it

        _install(logging)
    else:
        sys.meta_path.insert(0, _OnImport)


class _OnImport:
    """Finds ``logging`` as everybody else would, once, and has _install() run after it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "logging":
            return None
        sys.meta_path.remove(_OnImport)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _install(module)


def _install(logging: Any) -> None:
    make = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        _add_prefix(record)
        return record

    logging.setLogRecordFactory(make_record)
    if _level is not None:
        _apply_level(logging)


def _add_prefix(record: Any) -> None:
    from monarch._context import current

    record.actor_prefix = ""
    found = current.get(None)
    if found is None or not _wants_prefix():
        return
    record.actor_prefix = f"[actor={found.actor_instance}] "
    text = str(record.msg)
    if text:
        record.msg = (record.actor_prefix.replace("%", "%%") if record.args else record.actor_prefix) + text


def _wants_prefix() -> bool:
    """``monarch.actor.config.prefix_python_logs_with_actor``."""
    config = sys.modules["monarch.actor"].__dict__.get("config") if "monarch.actor" in sys.modules else None
    return bool(getattr(config, "prefix_python_logs_with_actor", True))


def set_level(level: int) -> None:
    """Drops records of ``logging`` below ``level`` in this process."""
    global _level
    _level = level
    watch()
    logging = sys.modules.get("logging")
    if logging is not None:
        _apply_level(logging)


def _apply_level(logging: Any) -> None:
    level = _level or 0
    logging.disable(max(level - 1, 0))  # for loggers that have a level of their own
    logging.getLogger().setLevel(level)
