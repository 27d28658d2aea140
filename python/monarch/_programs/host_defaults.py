"""What monarch-hostd asks an interpreter, once: what it is to give to all that it starts."""

from __future__ import annotations

from monarch._processes import launch


def main(fd: int) -> None:
    """Writes it to that descriptor."""
    with open(fd, "wb") as pipe:
        pipe.write(launch.offered())
