"""Extent, Point, Slice, Shape, Region as Python sees them, and what importing them costs."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Mapping

import pytest

from monarch._values.geometry import Extent, NDSlice, Point, Region, Shape, Slice


@pytest.fixture
def extent():
    return Extent(["hosts", "gpus"], [2, 4])


@pytest.fixture
def shape():
    return Shape(["a", "b"], Slice.new_row_major([2, 4]))


def raises(kind, text):
    """pytest.raises for a whole text, not a pattern."""

    class Raises:
        def __enter__(self):
            self.inner = pytest.raises(kind)
            self.info = self.inner.__enter__()

        def __exit__(self, *exc):
            handled = self.inner.__exit__(*exc)
            assert type(self.info.value) is kind
            assert str(self.info.value) == text
            return handled

    return Raises()


# Extent


@pytest.mark.feature(42, "Extent")
def test_an_extent_has_labels_sizes_and_a_count(extent):
    assert extent.labels == ["hosts", "gpus"]
    assert extent.sizes == [2, 4]
    assert extent.nelements == 8
    assert len(extent) == 2
    assert list(extent) == extent.keys() == ["hosts", "gpus"]
    assert dict(extent) == {"hosts": 2, "gpus": 4}
    assert "hosts" in extent and "x" not in extent and 3 not in extent


@pytest.mark.feature(42)
def test_an_extent_is_made_by_keyword_and_from_any_sequence(extent):
    assert Extent(labels=("hosts", "gpus"), sizes=(2, 4)) == extent


@pytest.mark.feature(42, "Extent")
def test_an_extent_prints_as_sizes_by_label(extent):
    assert repr(extent) == str(extent) == "{hosts: 2, gpus: 4}"
    assert repr(Extent([], [])) == "{}"


@pytest.mark.feature(42)
def test_an_extent_without_dimensions_has_one_element():
    assert Extent([], []).nelements == 1
    assert len(Extent([], [])) == 0


@pytest.mark.feature(42, "errors of Extent")
def test_an_unknown_dimension_of_an_extent_is_a_value_error(extent):
    with raises(ValueError, "Dimension 'x' not found"):
        extent["x"]


@pytest.mark.feature(42, "errors of Extent")
@pytest.mark.parametrize(
    "labels, sizes, text",
    [
        (["a"], [1, 2], "label/sizes dimension mismatch: 1 != 2"),
        (["a"], [0], "invalid sizes [0]: every dimension must have at least one element, got 0"),
        (["a"], [-1], "invalid sizes [-1]: every dimension must have at least one element, got -1"),
        (["a", "a"], [1, 2], "Duplicate dimension name 'a'"),
        (["a", "b"], [2**40, 2**40], f"invalid sizes [{2**40}, {2**40}]: the number of elements does not fit 63 bits"),
        (list("abcdefghijklmnopq"), [1] * 17, "a mesh can have at most 16 dimensions, got 17: flatten some of them"),
    ],
)
def test_a_wrong_extent_says_what_is_wrong(labels, sizes, text):
    with raises(ValueError, text):
        Extent(labels, sizes)


@pytest.mark.feature(42)
def test_labels_of_a_wrong_type_are_named():
    with raises(TypeError, "labels must be a sequence of str, but got 'ab'"):
        Extent("ab", [1, 2])
    with raises(TypeError, "a dimension label must be a str, got 3"):
        Extent([3], [1])
    with pytest.raises(TypeError):
        Extent(["a"], ["x"])


@pytest.mark.feature(42)
def test_an_extent_has_the_region_of_all_its_ranks(extent):
    assert extent.region == Region(["hosts", "gpus"], Slice.new_row_major([2, 4]))


@pytest.mark.feature(42)
def test_an_extent_has_no_get_or_items(extent):
    assert not hasattr(extent, "get") and not hasattr(extent, "items")


# Point


@pytest.mark.feature(42, "Point, a mapping")
def test_a_point_is_a_mapping_of_label_to_index(extent):
    point = Point(5, extent)
    assert isinstance(point, Mapping)
    assert point.rank == 5 and point.extent == extent
    assert point["hosts"] == 1 and point["gpus"] == 1
    assert list(point) == point.keys() == ["hosts", "gpus"]
    assert point.values() == [1, 1]
    assert point.items() == [("hosts", 1), ("gpus", 1)]
    assert point.get("gpus") == 1
    assert "gpus" in point
    assert len(point) == 2
    assert dict(point) == dict(**point) == {"hosts": 1, "gpus": 1}
    assert point.size("gpus") == 4


@pytest.mark.feature(42)
def test_a_point_can_be_matched(extent):
    namespace = {"point": Point(6, extent)}
    exec("match point:\n    case {'hosts': h, 'gpus': g}: found = (h, g)", namespace)
    assert namespace["found"] == (1, 2)


@pytest.mark.feature(42)
def test_a_point_prints_index_and_size(extent):
    assert repr(Point(5, extent)) == str(Point(5, extent)) == "{'hosts': 1/2, 'gpus': 1/4}"
    assert repr(Point(0, Extent([], []))) == "{}"


@pytest.mark.feature(42, "errors of Point")
@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p["zz"],
        lambda p: p.get("zz"),
        lambda p: p.get("zz", 3),
        lambda p: "zz" in p,
        lambda p: p.size("zz"),
    ],
)
def test_an_unknown_label_of_a_point_is_a_value_error(extent, ask):
    with raises(ValueError, "Dimension 'zz' not found"):
        ask(Point(0, extent))


@pytest.mark.feature(42, "errors of Point")
@pytest.mark.parametrize("rank", [8, -1])
def test_a_point_outside_its_extent_is_refused(extent, rank):
    with raises(ValueError, f"out of range: total ranks 8; does not contain rank {rank}"):
        Point(rank, extent)


# Slice


@pytest.mark.feature(42)
def test_nd_slice_is_slice():
    assert NDSlice is Slice


@pytest.mark.feature(42, "Slice")
def test_a_slice_has_its_fields():
    ndslice = Slice(offset=1, sizes=[2, 2], strides=[4, 2])
    assert (ndslice.ndim, ndslice.offset, ndslice.sizes, ndslice.strides) == (2, 1, [2, 2], [4, 2])
    assert list(ndslice) == [1, 3, 5, 7]
    assert len(ndslice) == 4
    assert 5 in ndslice and 2 not in ndslice and "x" not in ndslice


@pytest.mark.feature(42)
def test_a_slice_prints_its_fields():
    text = "Slice { offset: 0, sizes: [2, 4], strides: [4, 1] }"
    assert str(Slice.new_row_major([2, 4])) == repr(Slice.new_row_major([2, 4])) == text


@pytest.mark.feature(42, "Slice")
def test_a_slice_goes_between_values_and_places():
    ndslice = Slice.new_row_major([2, 4])
    assert ndslice.index(5) == 5
    assert ndslice.coordinates(5) == [1, 1]
    assert ndslice.nditem((1, 1)) == ndslice.nditem([1, 1]) == 5
    assert ndslice.get(3) == ndslice[3] == 3
    assert ndslice[1:3] == (1, 2)
    assert ndslice[-2:] == (6, 7)
    assert ndslice[::3] == (0, 3, 6)
    assert ndslice[3:1] == ()


@pytest.mark.feature(42, "errors of Slice")
@pytest.mark.parametrize(
    "ask, kind, text",
    [
        (lambda s: s.index(100), ValueError, "value 100 not in slice"),
        (lambda s: s.coordinates(100), ValueError, "value 100 not in slice"),
        (lambda s: s[9], IndexError, "index 9 out of range 8"),
        (lambda s: s.get(99), ValueError, "index 99 out of range 8"),
        (lambda s: s[-1], TypeError, "index must not be negative, got -1"),
        (lambda s: s.get(-1), OverflowError, "index must not be negative, got -1"),
        (lambda s: s[::-1], IndexError, "slice step must be positive, got -1"),
        (lambda s: s.nditem((1,)), IndexError, "invalid dims: expected 2, got 1"),
        (lambda s: s.nditem((1, 9)), IndexError, "index 9 out of range for dimension 1 of size 4"),
    ],
)
def test_a_wrong_question_to_a_slice_says_what_is_wrong(ask, kind, text):
    with raises(kind, text):
        ask(Slice.new_row_major([2, 4]))


@pytest.mark.feature(42, "errors of Slice")
@pytest.mark.parametrize(
    "fields, text",
    [
        (dict(offset=0, sizes=[2], strides=[1, 2]), "invalid dims: expected 1, got 2"),
        (dict(offset=-1, sizes=[2], strides=[1]), "the offset must not be negative, got -1"),
        (dict(offset=0, sizes=[2], strides=[0]), "invalid strides [0]: every stride must be at least 1, got 0"),
        (
            dict(offset=0, sizes=[3, 2], strides=[2, 3]),
            "nonrectangular shape: with sizes [3, 2] and strides [2, 3] the dimensions overlap",
        ),
        (
            dict(offset=0, sizes=[0], strides=[1]),
            "invalid sizes [0]: every dimension must have at least one element, got 0",
        ),
    ],
)
def test_a_wrong_slice_says_what_is_wrong(fields, text):
    with raises(ValueError, text):
        Slice(**fields)


@pytest.mark.feature(42)
def test_a_list_of_ranks_becomes_slices():
    assert Slice.from_list([]) == []
    assert Slice.from_list([0, 1, 4, 5]) == [
        Slice(offset=0, sizes=[2], strides=[1]),
        Slice(offset=4, sizes=[2], strides=[1]),
    ]


@pytest.mark.feature(42)
def test_an_iterator_of_a_slice_keeps_the_slice_alive():
    iterator = iter(Slice.new_row_major([3]))
    assert list(iterator) == [0, 1, 2]


# Shape and Region


@pytest.mark.feature(42, "Shape")
def test_a_shape_has_labels_slice_extent_and_region(shape):
    assert shape.labels == ["a", "b"]
    assert shape.ndslice == Slice.new_row_major([2, 4])
    assert shape.extent == Extent(["a", "b"], [2, 4])
    assert shape.region == Region(["a", "b"], shape.ndslice)
    assert shape.region.as_shape() == shape
    assert len(shape) == 8
    assert shape.ranks() == list(range(8))
    assert shape.coordinates(5) == {"a": 1, "b": 1}


@pytest.mark.feature(42)
def test_a_shape_prints(shape):
    assert str(shape) == "{a=2,b=4}"
    text = 'Shape { labels: ["a", "b"], slice: Slice { offset: 0, sizes: [2, 4], strides: [4, 1] } }'
    assert repr(shape) == text
    assert repr(shape.region) == text.replace("Shape", "Region", 1)


@pytest.mark.feature(42, "Shape", 43)
def test_at_drops_a_dimension_and_select_keeps_it(shape):
    assert repr(shape.at("a", 1)) == 'Shape { labels: ["b"], slice: Slice { offset: 4, sizes: [4], strides: [1] } }'
    assert shape.select("b", slice(1, None, 2)).ranks() == [1, 3, 5, 7]
    assert shape.select("b", slice(-2, None)).labels == ["a", "b"]
    assert shape.select("b", slice(None, 2**70)) == shape
    assert shape.index(a=1, b=2).ranks() == [6]
    assert shape.index() == shape


@pytest.mark.feature(42, "errors of Shape and Region")
@pytest.mark.parametrize(
    "ask, kind, text",
    [
        (lambda s: s.at("a", 2), ValueError, "out of range 2:3:1 for dimension a of size 2"),
        (lambda s: s.at("a", -1), OverflowError, "index must not be negative, got -1"),
        (lambda s: s.at("zz", 0), ValueError, 'invalid labels `["zz"]`'),
        (lambda s: s.index(zz=1), ValueError, 'invalid labels `["zz"]`'),
        (lambda s: s.index(a=7), ValueError, "out of range 7:8:1 for dimension a of size 2"),
        (lambda s: s.select("a", slice(2, 2)), ValueError, "out of range 2:2:1 for dimension a of size 2"),
        (lambda s: s.select("a", slice(7, 8)), ValueError, "out of range 2:2:1 for dimension a of size 2"),
        (lambda s: s.select("a", slice(1, 0)), ValueError, "empty range 1:0:1"),
        (lambda s: s.select("zz", slice(0, 1)), ValueError, 'invalid labels `["zz"]`'),
        (lambda s: s.select("a", slice(0, 2, 0)), ValueError, "slice step cannot be zero"),
        (lambda s: s.select("a", slice(0, 2, -1)), ValueError, "slice step must be positive, got -1"),
        (lambda s: s.coordinates(50), ValueError, "value 50 not in slice"),
        (lambda s: Shape(["a"], s.ndslice), ValueError, "label slice dimension mismatch: 1 != 2"),
        (lambda s: Shape(["a", "a"], s.ndslice), ValueError, "Duplicate dimension name 'a'"),
    ],
)
def test_a_wrong_question_to_a_shape_says_what_is_wrong(shape, ask, kind, text):
    with raises(kind, text):
        ask(shape)


@pytest.mark.feature(42)
def test_unity_is_one_rank_without_dimensions():
    assert len(Shape.unity()) == 1
    assert Shape.unity().ranks() == [0]
    assert Shape.unity() == Shape([], Slice(offset=0, sizes=[], strides=[]))


@pytest.mark.feature(42, "Region", "errors of Shape and Region")
def test_a_region_finds_the_point_of_a_base_rank(shape):
    region = shape.at("a", 1).region
    assert region.labels == ["b"]
    assert region.slice() == Slice(offset=4, sizes=[4], strides=[1])
    assert region.point_of_base_rank(5) == Point(1, Extent(["b"], [4]))
    with raises(ValueError, "out of range base rank: this base rank 1 does not belong to this region: 1"):
        region.point_of_base_rank(1)


# All of them


def values(extent, shape):
    view = shape.select("b", slice(1, None, 2))
    return [extent, Point(5, extent), Slice(offset=1, sizes=[2], strides=[3]), view, view.region, Shape.unity()]


@pytest.mark.feature(42, "pickles")
def test_every_value_survives_pickle_and_copy(extent, shape):
    for value in values(extent, shape):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(value, protocol)) == value
        assert copy.deepcopy(value) == value


@pytest.mark.feature(42)
def test_equal_values_hash_equal_and_differ_from_others(extent, shape):
    first, second = values(extent, shape), values(Extent(["hosts", "gpus"], [2, 4]), copy.copy(shape))
    assert first == second
    assert [hash(value) for value in first] == [hash(value) for value in second]
    assert len(set(first + second)) == len(first)
    for value in first:
        assert value != 3 and value is not None and not value == "x"
    assert Point(5, extent) != dict(Point(5, extent))


@pytest.mark.feature(42)
def test_numpy_integers_are_integers():
    numpy = pytest.importorskip("numpy")
    assert Extent(["a"], numpy.array([3])) == Extent(["a"], [3])
    assert Point(numpy.int64(2), Extent(["a"], [3])).rank == 2


def test_importing_geometry_loads_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); import monarch._values.value_mesh; "
        "print(sorted(m for m in ('numpy', 'asyncio', 'inspect', 'pprint', 'torch', 'logging')"
        " if m in sys.modules and m not in before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
