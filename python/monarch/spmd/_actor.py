"""The actor that makes its process a rank of an SPMD program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import Actor, current_rank, endpoint
from monarch.spmd import _elastic, _ports, _scripts

if TYPE_CHECKING:
    from monarch.tools.network import AddrType

__all__ = ["SPMDActor"]


class SPMDActor(Actor):
    """One rank of an SPMD program: spawned on a mesh of processes, it does for each what torchrun does.

    The rank is that in the mesh, or the slice of it, through which an endpoint is called; the last dimension is the
    local rank. The environment belongs to the process: the last set-up is the one that holds, whoever made it.
    """

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | None) -> tuple[str, int]:
        """A name of this machine and a free TCP port, for rank 0 to serve: ``MASTER_ADDR`` and ``MASTER_PORT``.

        The port is held: the system gives it to nobody who asks for any port, until this process ends, and whoever
        binds it by its number, as torch does, gets it. A process holds the last 64 that it has named.

        Args:
            use_ipaddr: None for the name of the host (an address of it where that name means nothing to the system),
                else which address of it; ``RuntimeError`` if it has none of that kind.
        """
        return _ports.host_address(use_ipaddr), _ports.hold_port()

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Sets the variables of torchrun in this process; ``ValueError`` for an empty address or no port number."""
        _elastic.set_variables(current_rank(), master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: list[str]) -> bool:
        """Runs a program in this process as ``python`` does, after ``setup_env``: True when it has ended well.

        It runs on the thread of this actor, where Python lets nobody set handlers of signals. What it has imported
        stays imported. A default process group of torch that it leaves open is closed before the next program here;
        at once if the program has failed and the group is one of gloo, so that other ranks do not wait for it.

        Args:
            master_addr: where rank 0 is.
            master_port: where rank 0 listens, or is to listen.
            script_args: a file and its arguments, or ``-m``, a module and its arguments.

        Raises:
            ValueError: ``No script or module specified``.
            TypeError: ``script_args`` is no list, or not one of texts and paths.
            RuntimeError: the program has ended with an exit status other than 0, or another one runs here for 10 s.
            Exception: whatever the program raised.
        """
        arguments = _scripts.as_arguments(script_args)
        _elastic.set_variables(current_rank(), master_addr, master_port)
        _scripts.run_as_main(arguments)
        return True
