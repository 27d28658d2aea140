"""What tools are told about a program: which job of torchx it wants, :class:`Config`, and which folders hosts are to
have, :class:`Workspace`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch._files.workspace import CondaEnvironment, Workspace
from monarch._public import publish

__all__ = ["CondaEnvironment", "Config", "Workspace"]

publish(__name__, {name: globals()[name] for name in ("CondaEnvironment", "Workspace")})


@dataclass
class Config:
    """A job of torchx, for :mod:`monarch.tools.commands`.

    Args:
        scheduler: one that torchx has, such as ``"slurm"`` or ``"local_cwd"``.
        scheduler_args: its options, as ``torchx runopts`` lists them.
        workspace: its folders are importable in the job; a scheduler with images puts them into them, and on hosts of
            others ``HostMesh.sync_workspace()`` does.
        dryrun: what would be submitted is only printed.
        appdef: an ``AppDef`` of torchx. Each role is a mesh, and runs ``monarch worker`` or the like.
    """

    scheduler: str
    scheduler_args: Mapping[str, Any] = field(default_factory=dict)
    workspace: Workspace = field(default_factory=Workspace.null)
    dryrun: bool = False
    appdef: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.scheduler, str) or not self.scheduler:
            raise TypeError(f"scheduler must be the name of one, such as 'slurm', but is {self.scheduler!r}")
        if not isinstance(self.scheduler_args, Mapping):
            raise TypeError(f"scheduler_args must be a dict of options, but is {self.scheduler_args!r}")
        if not isinstance(self.workspace, Workspace):
            raise TypeError(f"workspace must be a monarch.tools.config.Workspace, but is {self.workspace!r}")
