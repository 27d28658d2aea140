"""ValueMesh, and through it the methods that all meshes have."""

import pickle
import threading

import pytest

from monarch._values.geometry import Extent, Point, Shape, Slice
from monarch._values.mesh_trait import MeshTrait
from monarch._values.value_mesh import Lazy, ValueMesh
from monarch.actor import Actor, current_rank, endpoint


def row_major(**sizes):
    return Shape(list(sizes), Slice.new_row_major(list(sizes.values())))


@pytest.fixture
def mesh():
    return ValueMesh(row_major(a=2, b=4), list(range(8)))


def error(kind, ask):
    with pytest.raises(kind) as info:
        ask()
    assert type(info.value) is kind
    return info.value.args[0]


# Values


@pytest.mark.feature(26, "item, get, values, items, iteration, length")
def test_values_come_in_rank_order_by_every_way_of_asking(mesh):
    extent = Extent(["a", "b"], [2, 4])
    pairs = [(Point(rank, extent), rank) for rank in range(8)]
    assert mesh.values() == list(range(8))
    assert list(mesh.items()) == list(mesh) == pairs
    assert [mesh.get(rank) for rank in range(8)] == mesh.values()
    assert [mesh.item(**point) for point, _ in pairs] == mesh.values()
    assert len(mesh) == 8
    assert next(mesh.items()) == pairs[0]


@pytest.mark.feature(26)
def test_a_mesh_without_dimensions_has_one_value():
    mesh = ValueMesh(Shape.unity(), ["only"])
    assert len(mesh) == 1 and mesh.size() == 1 and mesh.sizes == {}
    assert mesh.item() == mesh.get(0) == "only"
    assert mesh.flatten("x").item(x=0) == "only"


@pytest.mark.feature(26)
def test_item_needs_exactly_the_dimensions(mesh):
    assert mesh.item(a=1, b=2) == 6
    assert error(KeyError, lambda: mesh.item(a=1)) == "b"
    assert error(KeyError, lambda: mesh.item(a=1, b=2, c=3)) == "item has extra dimensions: ['c']"
    assert error(IndexError, lambda: mesh.item(a=0, b=5)) == "index 5 out of range for dimension 'b' of size 4"
    assert error(IndexError, lambda: mesh.item(a=-1, b=0)) == "index -1 out of range for dimension 'a' of size 2"


@pytest.mark.feature(26)
def test_get_refuses_ranks_outside(mesh):
    assert error(ValueError, lambda: mesh.get(9)) == "index 9 out of range (len=8)"
    assert error(ValueError, lambda: mesh.get(-1)) == "index -1 out of range (len=8)"
    assert error(ValueError, lambda: mesh.slice(a=1).get(4)) == "index 4 out of range (len=4)"


@pytest.mark.parametrize("wrong", ["1", 1.0, None])
def test_ranks_and_indices_are_integers(mesh, wrong):
    text = f"'{type(wrong).__name__}' object cannot be interpreted as an integer"
    assert error(TypeError, lambda: mesh.get(wrong)) == text
    assert error(TypeError, lambda: mesh.item(a=0, b=wrong)) == text


@pytest.mark.feature(26)
def test_a_wrong_number_of_values_is_refused():
    shape = row_major(a=2, b=4)
    text = "invalid value mesh: expected 8 ranks, but contains 1 ranks"
    assert error(ValueError, lambda: ValueMesh(shape, [1])) == text
    assert error(ValueError, lambda: ValueMesh.from_indexed(shape, [(0, 1)])) == text


@pytest.mark.feature(26)
def test_from_indexed_takes_any_order_and_the_last_write_wins():
    shape = row_major(a=3)
    assert ValueMesh.from_indexed(shape, [(2, "c"), (0, "x"), (1, "b"), (0, "a")]).values() == ["a", "b", "c"]
    wrong = [(0, "a"), (1, "b"), (5, "c")]
    text = "invalid value mesh: rank 5 is not one of the 3 ranks"
    assert error(ValueError, lambda: ValueMesh.from_indexed(shape, wrong)) == text


@pytest.mark.feature(26)
def test_the_shape_must_be_a_shape():
    assert error(TypeError, lambda: ValueMesh(3, [1])) == "the shape of a ValueMesh must be a Shape, but got 3"


@pytest.mark.feature(26)
def test_there_is_no_indexing_and_equality_is_identity(mesh):
    with pytest.raises(TypeError):
        mesh[0]
    assert mesh == mesh
    assert mesh != ValueMesh(row_major(a=2, b=4), list(range(8)))
    assert hash(mesh) == hash(mesh)


@pytest.mark.feature(26)
def test_the_class_can_be_subscripted_in_annotations():
    assert ValueMesh[int](row_major(a=1), [1]).values() == [1]
    assert ValueMesh[int] == ValueMesh[int]

    def annotated() -> "ValueMesh[int]": ...


@pytest.mark.feature(26, "its text")
def test_repr_shows_a_point_and_a_value_per_line(mesh):
    assert repr(mesh.slice(b=slice(1, 4, 2))) == (
        "ValueMesh({a: 2, b: 2}):\n"
        "  (({'a': 0/2, 'b': 0/2}, 1),\n"
        "   ({'a': 0/2, 'b': 1/2}, 3),\n"
        "   ({'a': 1/2, 'b': 0/2}, 5),\n"
        "   ({'a': 1/2, 'b': 1/2}, 7))"
    )
    place = {"hosts": 0, "gpus": 1}  # as an actor gives it: its order is that of the dimensions, not of the alphabet
    assert repr(ValueMesh(Shape.unity(), [place])) == f"ValueMesh({{}}):\n  (({{}}, {place}),)"
    assert repr(ValueMesh(Shape.unity(), [6])) == "ValueMesh({}):\n  (({}, 6),)"


@pytest.mark.feature(26, "pickles")
def test_a_value_mesh_and_its_views_pickle(mesh):
    for original in (mesh, mesh.slice(a=1), mesh.slice(b=slice(0, 4, 2)), mesh.slice(a=1, b=1)):
        copy = pickle.loads(pickle.dumps(original))
        assert type(copy) is ValueMesh
        assert copy.extent == original.extent and copy.values() == original.values()


@pytest.mark.feature(26)
def test_a_pickled_view_carries_only_its_own_values():
    mesh = ValueMesh(row_major(a=2), [b"small", bytes(100_000)])
    assert len(pickle.dumps(mesh.slice(a=0))) < 1000


# Lazy replies


def decode_list(raw):
    decode_list.calls += 1
    return list(raw)


@pytest.fixture
def lazy_mesh():
    decode_list.calls = 0
    return ValueMesh(row_major(a=4), [Lazy(bytes([1, 2]), decode_list) for _ in range(4)])


@pytest.mark.feature(27, "each is decoded once")
def test_a_reply_is_decoded_at_first_look_and_kept(lazy_mesh):
    assert decode_list.calls == 0
    first = lazy_mesh.get(2)
    assert first == [1, 2] and decode_list.calls == 1
    assert lazy_mesh.get(2) is first
    assert lazy_mesh.values()[2] is first
    assert decode_list.calls == 4


@pytest.mark.feature(27)
def test_items_decode_one_after_the_other(lazy_mesh):
    next(lazy_mesh.items())
    assert decode_list.calls == 1


@pytest.mark.feature(27)
def test_views_share_what_is_decoded(lazy_mesh):
    view = lazy_mesh.slice(a=slice(1, 3))
    assert view.get(0) is lazy_mesh.get(1)
    assert view.rename(a="x").item(x=0) is lazy_mesh.item(a=1)
    assert decode_list.calls == 1


@pytest.mark.feature(27, "equal answers are kept once")
def test_equal_neighbouring_replies_are_stored_once_but_never_alias():
    raws = [b"same " * (n - n + 2) for n in range(10_000)] + [b"other"]
    assert len({id(raw) for raw in raws}) > 2
    entries = [Lazy(raw, list) for raw in raws]
    mesh = ValueMesh(row_major(a=len(raws)), entries)
    assert len({id(entry._payload) for entry in entries}) == 2
    values = mesh.values()
    assert len({id(value) for value in values}) == len(raws)
    assert values[0] == values[9_999] == list(b"same same ")


@pytest.mark.feature(27)
def test_replies_that_decode_differently_share_nothing():
    entries = [Lazy(b"1", int), Lazy(b"1", bytes)]
    assert ValueMesh(row_major(a=2), entries).values() == [1, b"1"]


@pytest.mark.feature(27)
def test_a_failed_decode_raises_and_may_be_tried_again():
    attempts = []

    def decode(raw):
        attempts.append(raw)
        if len(attempts) == 1:
            raise ImportError("not yet")
        return raw.decode()

    mesh = ValueMesh(row_major(a=1), [Lazy(b"x", decode)])
    assert error(ImportError, lambda: mesh.get(0)) == "not yet"
    assert mesh.get(0) == "x" == mesh.get(0)
    assert attempts == [b"x", b"x"]


@pytest.mark.feature(27)
def test_two_threads_that_look_first_get_the_same_value():
    both = threading.Barrier(2, timeout=10)

    def decode(raw):
        both.wait()
        return [raw]

    lazy = Lazy(b"x", decode)
    found = []
    threads = [threading.Thread(target=lambda: found.append(lazy.get())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found[0] is found[1] is lazy.get()


@pytest.mark.feature(27)
def test_a_lazy_mesh_pickles_its_values(lazy_mesh):
    assert pickle.loads(pickle.dumps(lazy_mesh)).values() == [[1, 2]] * 4


# What a call gives


class Replier(Actor):
    @endpoint
    def rank(self):
        return [current_rank().rank]  # a list: pickled

    @endpoint
    def same(self):
        return ["the same of all"]


@pytest.fixture
def repliers(procs):
    return procs.spawn("repliers", Replier)


@pytest.mark.feature(27, "equal answers are kept once")
def test_equal_replies_of_processes_are_stored_once_and_decoded_when_looked_at(repliers):
    replies = repliers.same.call().get(timeout=30)
    first, second = replies._values
    assert type(first) is type(second) is Lazy
    assert first._decode is not None and first._payload is second._payload
    value = replies.get(0)
    assert value == ["the same of all"] and first._decode is None and second._decode is not None
    assert replies.item(gpus=0) is value is replies.values()[0]
    assert replies.get(1) == value and replies.get(1) is not value


@pytest.mark.feature(26)
def test_the_replies_of_a_call_are_a_mesh_like_the_one_that_was_called(repliers):
    replies = repliers.rank.call().get(timeout=30)
    assert replies.extent == repliers.extent and list(replies) == [(Point(i, repliers.extent), [i]) for i in (0, 1)]
    assert repr(replies) == "ValueMesh({gpus: 2}):\n  (({'gpus': 0/2}, [0]), ({'gpus': 1/2}, [1]))"
    assert replies.rename(gpus="x").slice(x=1).item() == [1]
    assert replies.split(gpus=("a", "b"), b=1).flatten("c").item(c=1) == [1]
    copied = pickle.loads(pickle.dumps(replies.slice(gpus=1)))
    assert (copied.extent, copied.values()) == (Extent([], []), [[1]])


# Mesh methods


@pytest.mark.feature(26, "slice", 43, "an int drops the dimension", "a slice keeps it, with steps")
def test_slice_drops_a_dimension_for_an_int_and_keeps_it_for_a_slice(mesh):
    assert mesh.slice(a=1).sizes == {"b": 4}
    assert mesh.slice(a=1).values() == [4, 5, 6, 7]
    assert mesh.slice(b=slice(1, 3)).values() == [1, 2, 5, 6]
    assert mesh.slice(b=slice(None, None, 2)).values() == [0, 2, 4, 6]
    assert mesh.slice(b=slice(-2, None)).values() == [2, 3, 6, 7]
    assert mesh.slice(b=slice(0, 99)).values() == mesh.slice().values() == mesh.values()
    assert mesh.slice(a=1, b=2).item() == 6
    assert mesh.slice(b=slice(1, 4)).slice(b=slice(1, 3)).slice(a=1).values() == [6, 7]


@pytest.mark.feature(43)
def test_slicing_by_a_point_gives_its_value(mesh):
    for point, value in mesh:
        assert mesh.slice(**point).item() == value


@pytest.mark.feature(26, 43)
def test_points_of_a_view_are_ranked_inside_the_view(mesh):
    assert [point.rank for point, _ in mesh.slice(b=2)] == [0, 1]
    assert next(mesh.slice(b=2).items())[0].extent == Extent(["a"], [2])


@pytest.mark.feature(43, "errors")
@pytest.mark.parametrize(
    "dims, kind, text",
    [
        (dict(zz=1), TypeError, "Shape does not have dimension labeled 'zz'"),
        (dict(a=2), IndexError, "index out of range"),
        (dict(a=-1), IndexError, "index out of range"),
        (dict(a=slice(2, 2)), ValueError, "out of range 2:2:1 for dimension a of size 2"),
        (dict(b=slice(3, 1)), ValueError, "empty range 3:1:1"),
        (dict(b=slice(0, 2, 0)), ValueError, "slice step cannot be zero"),
        (dict(b=slice(3, 0, -1)), ValueError, "slice step must be positive, got -1"),
        (dict(b="x"), TypeError, "expected an int or a slice for dimension 'b', but got 'x'"),
        (dict(b=1.0), TypeError, "expected an int or a slice for dimension 'b', but got 1.0"),
    ],
)
def test_a_wrong_slice_says_what_is_wrong(mesh, dims, kind, text):
    assert error(kind, lambda: mesh.slice(**dims)) == f"{text} (of a mesh with the dimensions {dict(mesh.extent)})"


@pytest.mark.feature(26, "split", 44, "split infers a size")
def test_split_makes_several_dimensions_of_one(mesh):
    split = mesh.split(b=("c", "d"), d=2)
    assert split.sizes == {"a": 2, "c": 2, "d": 2}
    assert split.values() == mesh.values()
    assert split.slice(c=1).values() == [2, 3, 6, 7]
    assert mesh.split(b=["b", "c"], c=2).sizes == {"a": 2, "b": 2, "c": 2}
    assert mesh.split(b=("c", "d"), c=2, a=("e", "f"), e=1).sizes == {"e": 1, "f": 2, "c": 2, "d": 2}
    assert mesh.split().sizes == mesh.sizes


@pytest.mark.feature(44, "errors")
@pytest.mark.parametrize(
    "dims, text",
    [
        (dict(b="cd"), "expected a sequence of dimensions, but got 'cd'"),
        (dict(b=5), "expected a sequence of dimensions, but got 5"),
        (
            dict(b=("c", "d")),
            "Cannot infer size of ('c', 'd') because both d and c have unknown size."
            " Specify at least one as argument, e.g. d=4",
        ),
        (
            dict(b=("c", "d"), d=3),
            "Dimension 'b' of size 4 is not evenly divided by ('c', 'd') with sizes ('?', 3)",
        ),
        (
            dict(b=("c", "d"), c=2, d=3),
            "Dimension 'b' of size 4 is not evenly divided by ('c', 'd') with sizes (2, 3)",
        ),
        (dict(b=("a", "d"), d=2), "Duplicate dimension name 'a'"),
        (dict(b=("c", "c"), c=2), "Duplicate dimension name 'c'"),
        (dict(b=("c", "d"), d=2, q=4), "unused size constraints: ('q',)"),
        (dict(q=2, r=3), "unused size constraints: ('q', 'r')"),
        (dict(zz=("c", "d")), "'zz' is not an existing dim. Expected an integer size constraint on a new dim."),
        (dict(b=("c", "d"), c=0), "the size of new dimension 'c' must be at least 1, got 0"),
        (dict(b=("c", "d"), c=-2), "the size of new dimension 'c' must be at least 1, got -2"),
    ],
)
def test_a_wrong_split_says_what_is_wrong(mesh, dims, text):
    assert error(ValueError, lambda: mesh.split(**dims)) == text


@pytest.mark.feature(26, "flatten", 44, "flatten")
def test_flatten_makes_one_dimension_of_a_mesh_without_gaps(mesh):
    assert mesh.flatten("rank").sizes == {"rank": 8}
    assert mesh.flatten("rank").slice(rank=5).item() == 5
    assert mesh.slice(a=1).flatten("rank").values() == [4, 5, 6, 7]
    assert mesh.slice(a=slice(0, 1)).flatten("rank").sizes == {"rank": 4}
    text = "cannot flatten sparse mesh: ndslice.strides=[4] != dense_strides=[1]"
    assert error(ValueError, lambda: mesh.slice(b=1).flatten("x")) == text


@pytest.mark.feature(26, "rename", 44, "rename")
def test_rename_changes_labels_only(mesh):
    assert mesh.rename(a="x").slice(x=1).values() == [4, 5, 6, 7]
    assert mesh.rename(a="b", b="a").sizes == {"b": 2, "a": 4}
    assert error(ValueError, lambda: mesh.rename(a="b")) == "Duplicate dimension name 'b'"
    text = "'zz' is not an existing dim. Expected an integer size constraint on a new dim."
    assert error(ValueError, lambda: mesh.rename(zz="x")) == text


@pytest.mark.feature(44, "size")
def test_size_is_a_product_over_dimensions(mesh):
    assert mesh.size() == len(mesh) == 8
    assert mesh.size("b") == 4
    assert mesh.size(["a", "b"]) == 8 and mesh.size(("a",)) == 2 and mesh.size([]) == 1
    assert mesh.sizes == {"a": 2, "b": 4}
    assert mesh.extent == Extent(["a", "b"], [2, 4])
    assert error(KeyError, lambda: mesh.size("zz")) == f"{mesh!r} does not have dimension 'zz'"


def test_a_mesh_that_lacks_the_hooks_says_so():
    class Bare(MeshTrait):
        pass

    assert error(NotImplementedError, lambda: Bare().sizes) == "Bare does not define _shape"


def test_the_shape_of_a_mesh_may_be_an_attribute():
    class Own(MeshTrait):
        def __init__(self, shape):
            self._shape = shape

        def _new_with_shape(self, shape):
            return Own(shape)

    mesh = Own(Shape(["a", "b"], Slice(offset=0, sizes=[2, 3], strides=[3, 1])))
    assert mesh.sizes == {"a": 2, "b": 3} and mesh.slice(a=1).sizes == {"b": 3}
