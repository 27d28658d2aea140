"""What a node of a SlurmJob runs, as a task of its own: it becomes ``monarch worker``.

``python -m monarch.job._slurm_node FOLDER PORT FIRST [ADDRESS]``: the job's folder, the port, the number of its part's
first node, and where it listens. With port 0 it says where scripts find it in the file
``FOLDER/<how often the job has been requeued>.<number of the node>``.
"""

from __future__ import annotations

import os
import socket
import sys

from monarch.tools.cli import main


def address_file(folder: str, restarts: int, number: int) -> str:
    return os.path.join(folder, f"{restarts}.{number}")


def bracketed(host: str) -> str:
    """As it stands in an address."""
    return f"[{host}]" if ":" in host else host


def run(folder: str, port: int, first: int, listens_at: str = "0.0.0.0") -> int:
    """Does not return, unless it cannot."""
    name = os.environ["SLURMD_NODENAME"]
    listens = f"tcp://{bracketed(listens_at)}:{port}"
    if port == 0:
        listens, port = _take_port(listens_at)
        name = name if _is_known(name) else socket.gethostname()
        _write(folder, first + int(os.environ["SLURM_PROCID"]), f"tcp://{bracketed(name)}:{port}")
    return main(["worker", "--bind", f"tcp://{name}:{port}@{listens}", "--token-file", os.path.join(folder, "token")])


def _take_port(listens_at: str) -> tuple[str, int]:
    """A bound socket, which the worker takes over."""
    bound = socket.socket(socket.AF_INET6 if ":" in listens_at else socket.AF_INET, socket.SOCK_STREAM)
    bound.bind((listens_at, 0))
    bound.set_inheritable(True)
    port: int = bound.getsockname()[1]
    return f"tcp://{bracketed(listens_at)}:fd{bound.detach()}", port


def _is_known(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def _write(folder: str, number: int, address: str) -> None:
    """Whole, or not at all: somebody waits for the file."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    path = address_file(folder, restarts, number)
    with open(path + ".new", "w") as file:
        file.write(address)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
