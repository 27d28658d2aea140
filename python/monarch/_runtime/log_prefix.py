"""Python's logging: every record says in which actor it was made, ``record.actor_prefix`` and at its beginning."""

from __future__ import annotations

import logging
import sys
from typing import Any
from weakref import WeakSet

from monarch._runtime.context import current, in_client

_watching = False
# Of loggers other than the root, from before the script's first use of this package: what they show stays as it was.
_older_handlers: WeakSet[logging.Handler] = WeakSet()


def watch() -> None:
    """From now on records that are made in actors of this process, or where its client is used, get the prefix."""
    global _watching
    if _watching:
        return
    _watching = True
    for logger in list(logging.Logger.manager.loggerDict.values()):
        _older_handlers.update(getattr(logger, "handlers", ()))
    make = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        _add_prefix(record)
        return record

    logging.setLogRecordFactory(make_record)


def _add_prefix(record: Any) -> None:
    record.actor_prefix = ""
    found = current.get(None)
    if found is not None:
        who = found.actor_instance
    elif in_client.get() and _is_shown_anew(record.name):
        who = "<root>"
    else:
        return
    if not _wants_prefix():
        return
    record.actor_prefix = f"[actor={who}] "
    try:
        text = str(record.msg)
    except Exception:
        return  # logging says so, where it formats the record
    if text:
        record.msg = (record.actor_prefix.replace("%", "%%") if record.args else record.actor_prefix) + text


def _is_shown_anew(name: str | None) -> bool:
    """Whether a handler that is not from before shows what this logger is told. Scripts that have none see it plain."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler not in _older_handlers for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _wants_prefix() -> bool:
    """``monarch.actor.config.prefix_python_logs_with_actor``."""
    config = sys.modules.get("monarch.actor.config")  # the user's own, loaded by whoever sets it
    return bool(getattr(config, "prefix_python_logs_with_actor", True))


def set_level(level: int) -> None:
    """Drops records of ``logging`` below ``level`` in this process."""
    watch()
    logging.disable(max(level - 1, 0))  # for loggers that have a level of their own
    logging.getLogger().setLevel(level)
