"""Selection: some ranks of a shape, written as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from monarch._values.geometry import Extent, Shape

if TYPE_CHECKING:
    # A rank as far as it is chosen: how many dimensions are, the row-major rank in those, whether "?" chose the last.
    Place = tuple[int, int, bool]

__all__ = ["Selection"]

_DIMS_MAX = 16
_NESTING_MAX = 64
_INDEX_MAX = 2**63 - 1


class Selection:
    """Some ranks of a shape, one expression per dimension: ``Selection.from_string("(*, 0:4)")``.

    Per dimension, outermost first, separated by commas: ``*`` (all indices), ``?`` (one, at random), an index,
    ``start:stop:step`` as in Python with each part optional, not negative. What comes after the last expression is
    taken whole; after a last ``?`` it is one at random as well. ``a|b`` is what a or b selects, ``a&b`` what both do;
    they bind less than the comma, ``&`` more than ``|``. Parentheses group, in any place: ``*, (0|2:4), (1, 0)``.

    Two are equal if their texts are, blanks aside. Immutable, hashable, picklable.
    """

    __slots__ = ("_root", "_text")
    _root: Any
    _text: str

    def __init__(self, *_: Any) -> None:
        raise TypeError("cannot create 'Selection' instances: use Selection.from_string(), all() or any()")

    @classmethod
    def from_string(cls, input: str) -> Selection:
        """``ValueError`` (``parse error: Failed to parse selection: ...``) if the text is none."""
        if not isinstance(input, str):
            raise TypeError(f"a selection is read from a str, not from {input!r}")
        selection = object.__new__(cls)
        selection._text, selection._root = _Parser(input).parse()
        return selection

    @classmethod
    def all(cls) -> Selection:
        """All ranks."""
        return cls.from_string("*")

    @classmethod
    def any(cls) -> Selection:
        """One rank, at random each time it is asked for."""
        return cls.from_string("?")

    def ranks(self, shape: Shape | Extent) -> list[int]:
        """The ranks that it selects, in ascending order: base ranks of a ``Shape``, ranks of an ``Extent``.

        A range is cut to the dimension, so there may be none. ``IndexError`` for an index beyond it, ``ValueError`` if
        the selection has more dimensions than the shape. (All or one of a shape without dimensions is its one rank.)
        """
        if not isinstance(shape, (Shape, Extent)):
            raise TypeError(f"ranks are selected from a Shape or an Extent, not from {shape!r}")
        extent = shape if isinstance(shape, Extent) else shape.extent
        if not len(extent) and self._text in ("*", "?"):
            ranks = [0]
        else:
            if (depth := _depth(self._root)) > len(extent):
                raise ValueError(f"the selection ({self._text}) has {depth} dimensions, {extent!r} has {len(extent)}")
            places = _step(self._root, {(0, 0, False)}, extent)
            ranks = sorted(_expand(places, extent, len(extent)))
        return ranks if isinstance(shape, Extent) else [shape.ndslice[rank] for rank in ranks]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Selection.from_string({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Selection, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection.from_string, (self._text,)


# ---- Evaluation. A node is ("*",), ("?",), (index,), (start, stop, step), or an operator of "|&," and its nodes ----


def _depth(node: Any) -> int:
    """How many dimensions it names, at most."""
    if node[0] == ",":
        return sum(map(_depth, node[1]))
    return max(map(_depth, node[1])) if node[0] in ("|", "&") else 1


def _step(node: Any, places: set[Place], extent: Extent) -> set[Place]:
    """Where a node leads to from these places."""
    kind = node[0]
    if kind == ",":
        for one in node[1]:
            places = _step(one, places, extent)
        return places
    if kind == "|":
        return set().union(*(_step(one, places, extent) for one in node[1]))
    if kind == "&":
        sides = [_step(one, places, extent) for one in node[1]]
        depth = max((place[0] for side in sides for place in side), default=0)
        ranks = [_expand(side, extent, depth) for side in sides]
        return {(depth, rank, False) for rank in ranks[0].intersection(*ranks[1:])}
    found = set()
    for dims, rank, _ in places:
        size = extent.sizes[dims]
        for index in _indices(node, size, extent.labels[dims]):
            found.add((dims + 1, rank * size + index, kind == "?"))
    return found


def _indices(node: Any, size: int, label: str) -> Iterable[int]:
    if node[0] == "*":
        return range(size)
    if node[0] == "?":
        return (_random_index(size),)
    if len(node) == 1:
        if node[0] >= size:
            raise IndexError(f"index {node[0]} out of range for dimension {label!r} of size {size}")
        return node
    start, stop, step = node
    return range(size)[start:stop:step]


def _expand(places: set[Place], extent: Extent, depth: int) -> set[int]:
    """The ranks in the first ``depth`` dimensions that begin like these places."""
    sizes = extent.sizes
    ranks: set[int] = set()
    for dims, rank, at_random in places:
        count = 1
        for size in sizes[dims:depth]:
            count *= size
        first = rank * count
        if at_random:
            ranks.add(first + _random_index(count))
        else:
            ranks.update(range(first, first + count))
    return ranks


def _random_index(size: int) -> int:
    from random import randrange

    return randrange(size)


# ---- Parsing ----


class _Parser:
    def __init__(self, text: str) -> None:
        self._input = text
        self._tokens = _tokens(text)
        self._at = 0
        self._nesting = 0

    def parse(self) -> tuple[str, Any]:
        """The text without blanks, and its tree."""
        root = self._operator("|&,")
        if self._peek() is not None:
            self._fail("expected the end")
        if (depth := _depth(root)) > _DIMS_MAX:
            self._fail(f"{depth} dimensions, at most {_DIMS_MAX}")
        return "".join(self._tokens), root

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, token: str) -> bool:
        found = self._peek() == token
        self._at += found
        return found

    def _fail(self, why: str) -> None:
        found = self._peek()
        where = "at the end" if found is None else f"at {''.join(self._tokens[self._at :])!r}"
        raise ValueError(f'parse error: Failed to parse selection: {why} {where} (input: "{self._input}")')

    def _operator(self, operators: str) -> Any:
        """Nodes joined by the first of the operators, each made of the others."""
        if not operators:
            return self._atom()
        nodes = [self._operator(operators[1:])]
        while self._take(operators[0]):
            nodes.append(self._operator(operators[1:]))
        return nodes[0] if len(nodes) == 1 else (operators[0], tuple(nodes))

    def _atom(self) -> Any:
        if self._take("("):
            self._nesting += 1
            if self._nesting > _NESTING_MAX:
                self._fail(f"more than {_NESTING_MAX} parentheses in each other")
            node = self._operator("|&,")
            if not self._take(")"):
                self._fail("expected ')'")
            self._nesting -= 1
            return node
        for token in "*?":
            if self._take(token):
                return (token,)
        return self._range()

    def _range(self) -> Any:
        start = self._number()
        if not self._take(":"):
            if start is None:
                self._fail("expected '*', '?', an index, a range or '('")
            return (start,)
        stop = self._number()
        step: int | None = 1
        if self._take(":"):
            if self._peek() == "0" or not (step := self._number()):
                self._fail("expected a positive step")
        return start or 0, stop, step

    def _number(self) -> int | None:
        token = self._peek()
        if token is None or not "0" <= token[0] <= "9":
            return None
        if len(token) > 19 or int(token) > _INDEX_MAX:
            self._fail("too large an index")
        self._at += 1
        return int(token)


def _tokens(text: str) -> list[str]:
    """Numbers, and every other character that is not blank."""
    tokens = []
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and "0" <= text[end] <= "9":
            end += 1
        if end == at:
            end += 1
        if not text[at].isspace():
            tokens.append(text[at:end])
        at = end
    return tokens
