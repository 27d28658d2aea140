"""What a SlurmJob may be given."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from monarch._checks import check_text


def checked_ip(bind_to: Any) -> str:
    try:
        if not isinstance(bind_to, str):
            raise ValueError
        return str(ipaddress.ip_address(bind_to))
    except ValueError:
        raise ValueError("bind_to must be an IPv4 or IPv6 address without a port") from None


def check_words(**given: Any) -> None:
    for name, value in given.items():
        if value is None and name not in ("python_exe", "job_name"):
            continue
        check_text(name, value)
        if not value or any(sign in value for sign in "\n\0"):
            raise ValueError(f"{name} must be a line of text, but is {value!r}")


def checked_partition(partition: Any) -> str | dict[str, str] | None:
    if not isinstance(partition, Mapping):
        check_words(partition=partition)
        return partition if partition is None else str(partition)
    for name, own in partition.items():
        check_text("the name of a mesh in partition", name)
        check_words(**{f"partition of {name!r}": own})
        if own is None:
            raise ValueError(f"partition of {name!r} must be a line of text, but is None; leave it out for the default")
    return dict(partition)


def check_counts(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} must be a count, 1 or more, but is {value!r}")
