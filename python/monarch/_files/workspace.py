"""``Workspace``: folders that hosts are to have as the client has them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch._files.ignore import outer_rules
from monarch._files.places import check_places, default_root
from monarch._files.tree import walk

__all__ = ["CondaEnvironment", "Workspace"]


class CondaEnvironment:
    """A conda environment: that of ``prefix``, or the active one, which ``CONDA_PREFIX`` names."""

    def __init__(self, prefix: str | os.PathLike[str] | None = None) -> None:
        self._prefix = None if prefix is None else os.fspath(prefix)

    @property
    def conda_prefix(self) -> str:
        """Its folder; ``RuntimeError`` if none is named and none is active."""
        prefix = self._prefix or os.environ.get("CONDA_PREFIX")
        if not prefix:
            raise RuntimeError("no conda environment is active: CONDA_PREFIX is not set, and no prefix was given")
        return prefix

    def __repr__(self) -> str:
        return f"CondaEnvironment({self._prefix!r})"


class Workspace:
    """Folders of this machine, and the place of each below ``$WORKSPACE_DIR`` on hosts."""

    def __init__(
        self,
        dirs: Sequence[str | os.PathLike[str]] | Mapping[str | os.PathLike[str], str] | None = None,
        env: CondaEnvironment | str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            dirs: folders, each of which gets its own name there; or a dict that maps each to a path below
                ``$WORKSPACE_DIR``. No two may get the same place, or one inside of the other's: ``ValueError``.
            env: the conda environment, by its prefix; None: the active one, if there is one.
        """
        self.dirs: dict[Path, str] = _places(dirs)
        if env is None and os.environ.get("CONDA_PREFIX"):
            env = CondaEnvironment()
        self.env = env if env is None or isinstance(env, CondaEnvironment) else CondaEnvironment(env)
        self._is_null = False

    @classmethod
    def null(cls) -> Workspace:
        """One of nothing, on purpose: ``sync_workspace`` refuses any other without folders."""
        workspace = cls()
        workspace.env = None
        workspace._is_null = True
        return workspace

    def merge(self, outdir: str | os.PathLike[str]) -> None:
        """Copies the folders to their places below ``outdir``: what hosts would get, and links as links.

        Files that are there are replaced, others stay.
        """
        for source, name in self.dirs.items():
            root = os.fsencode(source)
            there = os.path.join(os.fsencode(outdir), os.fsencode(name))
            os.makedirs(there, exist_ok=True)
            for path, found in walk(root, outer_rules(root)):
                copy = os.path.join(there, path)
                if found.is_dir(follow_symlinks=False):
                    os.makedirs(copy, exist_ok=True)
                    continue
                if found.is_symlink() or found.is_file():
                    _copy(found.path, copy)

    def set_env_vars(self, appdef: Any) -> None:
        """Sets variables in ``role.env`` of each of ``appdef.roles``, so that what runs there imports from the folders.

        ``WORKSPACE_DIR``, unless the role has one, and the folders in front of ``PYTHONPATH``.
        """
        for role in appdef.roles:
            root = role.env.setdefault("WORKSPACE_DIR", default_root())
            paths = [os.path.join(root, name) for name in self.dirs.values()]
            if before := role.env.get("PYTHONPATH"):
                paths.append(before)
            if paths:
                role.env["PYTHONPATH"] = os.pathsep.join(paths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and (self.dirs, repr(self.env)) == (other.dirs, repr(other.env))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        dirs = {os.fspath(source): name for source, name in self.dirs.items()}
        return f"Workspace(dirs={dirs!r}, env={self.env!r})"


def _copy(source: bytes, to: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(to)
    shutil.copy2(source, to, follow_symlinks=False)


def _places(dirs: Any) -> dict[Path, str]:
    if dirs is None:
        return {}
    if isinstance(dirs, (str, bytes, os.PathLike)) or not isinstance(dirs, (Sequence, Mapping)):
        raise TypeError(f"dirs must be a list of folders, or a dict of folders and places, but is {dirs!r}")
    if isinstance(dirs, Mapping):
        wanted = [(_folder(source), name) for source, name in dirs.items()]
    else:
        wanted = [(_folder(source), _folder(source).name) for source in dirs]
    return check_places(wanted)


def _folder(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"dirs has {path!r}, which is no path of a folder")
    return Path(os.path.abspath(os.path.expanduser(os.fspath(path))))
