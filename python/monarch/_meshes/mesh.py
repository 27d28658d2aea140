"""What meshes of hosts, processes and actors have in common."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._meshes import origins
from monarch._notices import deprecated, not_yet
from monarch._values.geometry import Shape, Slice
from monarch._values.mesh_trait import MeshTrait

if TYPE_CHECKING:
    from typing_extensions import Self

    from monarch._calls.future import Future

STOPPED_BY_CLIENT = "stopped by client"


def whole(labels: list[str], sizes: list[int]) -> Shape:
    return Shape(labels, Slice.new_row_major(sizes))


class Mesh(MeshTrait):
    """Labels and base ranks, and what old programs do with meshes: await them, or get() them."""

    _view: Shape
    _name: str
    _owner: Any = None  # owned.Owned of the actor that has spawned it
    _supervised: int = 0  # the number under which failures of it are told to its owner; 0: they are not
    _NOT_YET: frozenset[str] = frozenset()  # names of later versions: they say so
    _ELSEWHERE: Mapping[str, str] = {}  # names that are looked for here, and where that is

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in self._NOT_YET:
            raise not_yet(f"{kind}.{name}")
        where = f": {self._ELSEWHERE[name]}" if name in self._ELSEWHERE else ""
        raise AttributeError(f"{kind!r} object has no attribute {name!r}{where}")

    @property
    def _shape(self) -> Shape:
        return self._view

    def _ends(self, end: Future[None]) -> Future[None]:
        """It has been asked to end, and ``end`` says when it has."""
        self._end_supervision()
        if self._owner is not None:
            self._owner.ends(self, end)
        return end

    def _end_supervision(self) -> None:
        """What becomes of it is no failure any more."""
        if self._supervised:
            origins.forget(self._supervised)
            _core.disown(self._supervised)
            self._supervised = 0

    def _members(self) -> Sequence[Any]:
        """What the base ranks stand for."""
        raise NotImplementedError

    def _key(self) -> tuple[Any, ...]:
        """What two handles have in common if they reach the same members in the same arrangement."""
        members = self._members()
        view = self._view
        return tuple(members[rank] for rank in view.ranks()), tuple(view.labels), tuple(view.ndslice.sizes)

    def __eq__(self, other: object) -> bool:
        same_kind = isinstance(other, type(self)) or isinstance(self, type(other))
        return same_kind and isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __await__(self) -> Generator[Any, None, Self]:
        deprecated_wait(self)
        return self
        yield

    def _describe(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        return "{" + sizes + "}"


def deprecated_wait(mesh: Any) -> None:
    kind = type(mesh).__name__
    deprecated(f"no need to await or get() this {kind}: spawning returns it at once, and calls wait for it", 4)
