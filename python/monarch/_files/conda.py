"""Environments of conda have their own path in some of their files, which is another one on a host."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import NamedTuple

__all__ = ["Prefix", "is_conda_environment", "prefix_of", "rewrite"]


class Prefix(NamedTuple):
    """The path of an environment on the client, and in which of its files that is."""

    path: bytes
    text: frozenset[bytes]
    binary: dict[bytes, int]  # file -> for how long a path there is room


def is_conda_environment(path: str) -> bool:
    """Whether conda has made it."""
    return os.path.isdir(os.path.join(path, "conda-meta"))


def prefix_of(environment: str) -> Prefix:
    """From what conda keeps of each package, and of the scripts in ``bin`` that pip has made."""
    path, text, binary = os.fsencode(os.path.abspath(environment)), set[bytes](), dict[bytes, int]()
    for record in glob.glob(os.path.join(glob.escape(environment), "conda-meta", "*.json")):
        with open(record, encoding="utf-8") as file:
            try:
                listed = json.load(file).get("paths_data", {}).get("paths", [])
            except (ValueError, AttributeError):
                raise ValueError(f"{record!r} is not what conda writes there") from None
        for each in listed:
            placeholder = each.get("prefix_placeholder")
            if placeholder and each.get("file_mode") == "binary":
                binary[os.fsencode(each["_path"])] = len(os.fsencode(placeholder))
            elif placeholder:
                text.add(os.fsencode(each["_path"]))
    for script in glob.glob(os.path.join(glob.escape(path), b"bin", b"*")):
        if os.path.isfile(script) and not os.path.islink(script):
            with open(script, "rb") as program:
                if program.read(2 + len(path)) == b"#!" + path:
                    text.add(os.path.relpath(script, path))
    return Prefix(path, frozenset(text), binary)


def rewrite(data: bytes, prefix: Prefix, path: bytes, to: bytes) -> bytes:
    """The content of that file for an environment at ``to``. ``ValueError`` where a program has no room for it."""
    if path in prefix.text:
        return data.replace(prefix.path, to)
    room = prefix.binary[path]
    if len(to) > room:
        raise ValueError(
            f"{os.fsdecode(path)!r} has room for a path of {room} bytes, and {os.fsdecode(to)!r} is longer"
        )
    out, at = bytearray(data), 0
    pattern = re.compile(re.escape(prefix.path) + rb"[^\0]*")
    while found := pattern.search(out, at):
        old, count = found[0], found[0].count(prefix.path)
        length = len(old) + count * (room - len(prefix.path))
        out[found.start() : found.start() + length] = old.replace(prefix.path, to).ljust(length, b"\0")
        at = found.start() + length
    return bytes(out[: len(data)])
