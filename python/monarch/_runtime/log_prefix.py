"""Python's logging: every record says in which actor it was made."""

from __future__ import annotations

import sys
from typing import Any

from monarch._runtime.context import current

_watching = False


def watch() -> None:
    """From now on records that are made in actors of this process get the prefix."""
    global _watching
    if _watching:
        return
    _watching = True
    import logging

    make = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        _add_prefix(record)
        return record

    logging.setLogRecordFactory(make_record)


def _add_prefix(record: Any) -> None:
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
    config = sys.modules.get("monarch.actor.config")  # the user's own, loaded by whoever sets it
    return bool(getattr(config, "prefix_python_logs_with_actor", True))


def set_level(level: int) -> None:
    """Drops records of ``logging`` below ``level`` in this process."""
    watch()
    import logging

    logging.disable(max(level - 1, 0))  # for loggers that have a level of their own
    logging.getLogger().setLevel(level)
