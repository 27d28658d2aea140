"""Where worker loops are, as ``attach_to_workers`` and they themselves are told, and the certificates of both."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from monarch import _core
from monarch._notices import not_yet

if TYPE_CHECKING:
    from pathlib import Path

    Key = bytes | Path | None
    Ca = bytes | Path | Literal["trust_all_connections"] | None

_URL = re.compile(r"(?:(?P<identity>[\w.-]*(?:<\w+>)?)@)?(?P<scheme>[a-z]+)://(?P<rest>.+)")
_FD = re.compile(r":fd([0-9]{1,9})$")
_SCHEMES = {"tcp", "tls", "ipc", "inproc"}
_LATER = {"quic", "metatls", "metaquic"}

in_process: dict[tuple[int, int], str] = {}  # pid and N of inproc://N -> where that worker loop listens


class Address(NamedTuple):
    identity: str | None
    scheme: str
    rest: str

    @property
    def is_tcp(self) -> bool:
        return self.scheme in ("tcp", "tls")

    @property
    def is_chosen_there(self) -> bool:
        """Whether who listens there knows where that is, and nobody else."""
        return self.is_tcp and self.rest.endswith(":0")

    @property
    def url(self) -> str:
        return ("" if self.identity is None else f"{self.identity}@") + f"{self.scheme}://{self.rest}"


def parsed(address: Any) -> Address:
    if not isinstance(address, str):
        raise TypeError(f"the address of a worker must be a str such as 'tcp://host:4444', but is {address!r}")
    found = _URL.fullmatch(address)
    problem = "missing scheme"
    if found is not None:
        scheme = found["scheme"]
        if scheme in _LATER:
            raise not_yet(f"a worker address such as {address!r}")
        problem = f"unsupported ZMQ scheme: {scheme}"
        if scheme in _SCHEMES:
            if scheme != "inproc" or found["rest"].isdecimal():
                return Address(found["identity"], scheme, found["rest"])
            problem = f"invalid inproc port: {found['rest']}"
    raise ValueError(
        f"invalid worker address \"{address}\": {problem}; expected a channel URL such as 'tcp://host:4444' or a "
        "ProcAddr such as 'service<2MuAHeDjLCEd>@tcp://host:4444'"
    )


def dialled(address: Any) -> Address:
    """Where it is, for who attaches."""
    where = parsed(address)
    if where.scheme != "inproc":
        return where
    url = in_process.get((os.getpid(), int(where.rest)))
    if url is None:
        raise ValueError(
            f"there is no worker loop at inproc://{where.rest} in this process, which alone could have one: "
            f"start_worker_loop_forever(address='inproc://{where.rest}') comes before who attaches to it"
        )
    return Address(where.identity, "ipc", url.removeprefix("ipc://"))


def inherited(where: Address) -> list[int]:
    """Descriptors that stand in the address."""
    found = _FD.search(where.rest) if where.is_tcp else None
    if found is None:
        return []
    fd = int(found[1])
    try:
        os.fstat(fd)
    except (OSError, OverflowError):
        raise OSError(f"cannot listen on descriptor {fd}: this process has not been given one") from None
    return [fd]


def certificates_of(private_key: Key, ca: Ca, has_tcp: bool) -> tuple[bytes, bytes]:
    """Authorities and key, as PEM. No authorities: any certificate will do. No key: they are made from the token."""
    if private_key is None and (ca is None or ca == "trust_all_connections"):
        return b"", b""
    if private_key is None or ca is None:
        raise ValueError(
            "certificates of one's own are two things: private_key, with the certificate behind it, and ca, by which "
            f"others are known; {'ca' if ca is None else 'private_key'} is missing"
        )
    if not has_tcp:
        raise ValueError(
            "private_key and ca are for addresses such as tcp://host:4444; within a machine there is no TLS"
        )
    key = _pem("private_key", private_key)
    return b"" if ca == "trust_all_connections" else _pem("ca", ca), key


def _pem(what: str, source: Any) -> bytes:
    from pathlib import Path

    if not isinstance(source, (bytes, Path)):
        raise TypeError(
            f"{what} must be PEM, as bytes or as the pathlib.Path of a file, but is {type(source).__name__}"
        )
    if isinstance(source, Path):
        with open(source, "rb") as file:
            if what == "private_key" and os.fstat(file.fileno()).st_mode & 0o077:
                raise ValueError(f"{source} holds a private key that others can read: chmod 600 {source}")
            source = file.read()
    if not source.strip():
        raise ValueError(f"{what} is empty")
    return source


def warn_of_trust() -> None:
    global _warned
    if not _warned:
        warnings.warn(
            'ca="trust_all_connections": certificates of hosts are not checked, so whoever sits in between can listen; '
            "leave ca out to have them checked, at no effort",
            RuntimeWarning,
            stacklevel=3,
        )
    _warned = True


_warned = False


def token_file() -> str:
    return os.path.abspath(os.environ.get("MONARCH_TOKEN_FILE") or _core.host_token_file())
