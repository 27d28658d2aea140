"""Selections: their texts, and the ranks that they choose."""

import copy
import itertools
import pickle

import pytest

import monarch
from monarch import Extent, NDSlice, Selection, Shape

EXTENT = Extent(["hosts", "gpus"], [2, 4])


@pytest.mark.feature(45, "the ranks of a shape")
@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        # one expression per dimension; what is not named is taken whole
        ("*", range(8)), ("(*)", range(8)), ("*,*", range(8)), ("(*, *)", range(8)), (":", range(8)),
        ("1", [4, 5, 6, 7]), ("1,2", [6]), ("(1, 2)", [6]), ("((1, 2))", [6]), ("*, 2", [2, 6]),
        # ranges
        ("(*, 0:4)", range(8)), ("*, 1:3", [1, 2, 5, 6]), ("*, 0:4:2", [0, 2, 4, 6]), ("*, 1::2", [1, 3, 5, 7]),
        ("*, :2", [0, 1, 4, 5]), ("*, 2:", [2, 3, 6, 7]), ("*, ::3", [0, 3, 4, 7]), ("*, 3:99", [3, 7]),
        ("*, 1:1", []), ("*, 3:1", []), ("9:,*", []), ("0:1, 00:02", [0, 1]),
        # unions, of dimensions and of ranks; nesting
        ("*, (0|2)", [0, 2, 4, 6]), ("*, (0|2:4)", [0, 2, 3, 4, 6, 7]), ("(0|1), 3", [3, 7]), ("0|1", range(8)),
        ("0,0|1,3", [0, 7]), ("(0,(0|2))", [0, 2]), ("(0,1)|(1,2:4)", [1, 6, 7]), ("*,0|0,1", [0, 1, 4]),
        ("((0,1)|1)", [1, 4, 5, 6, 7]), ("0|0|0", [0, 1, 2, 3]),
        # intersections bind more than unions, less than commas
        ("*,0:3 & *,2:", [2, 6]), ("0 & *,1:3", [1, 2]), ("0&1", []), ("1,0 | 0 & *,1", [1, 4]),
        ("(0|1)&1,(2&:3)", [6]),
    ],
)  # fmt: skip
def test_a_selection_chooses_ranks(text, ranks):
    assert Selection.from_string(text).ranks(EXTENT) == list(ranks)


@pytest.mark.feature(45)
def test_the_dimensions_nest_as_deep_as_the_shape():
    extent = Extent(["a", "b", "c", "d"], [3, 2, 4, 2])
    chosen = Selection.from_string("(0|2), *, 1:4:2, 1").ranks(extent)
    places = itertools.product((0, 2), (0, 1), (1, 3), (1,))
    assert chosen == [((a * 2 + b) * 4 + c) * 2 + d for a, b, c, d in places]


@pytest.mark.feature(45, "the ranks of a shape")
def test_of_a_shape_the_base_ranks_are_chosen():
    shape = Shape(["a", "b"], NDSlice(offset=10, sizes=[2, 4], strides=[100, 2]))
    assert Selection.from_string("1, 1:3").ranks(shape) == [112, 114]
    assert Selection.all().ranks(shape) == shape.ranks()
    assert Selection.from_string("1:").ranks(shape.at("a", 1)) == [112, 114, 116]


@pytest.mark.feature(45)
def test_any_is_one_rank_and_each_in_its_turn():
    seen = set()
    while len(seen) < 8:
        (rank,) = Selection.any().ranks(EXTENT)
        seen.add(rank)
    assert seen == set(range(8))


@pytest.mark.feature(45)
def test_a_question_mark_is_one_index_of_its_dimension():
    whole = set()
    while len(whole) < 2:
        whole.add(tuple(Selection.from_string("?,*").ranks(EXTENT)))
    assert whole == {(0, 1, 2, 3), (4, 5, 6, 7)}
    apart = False
    while not apart:  # each host chooses its own
        first, second = Selection.from_string("*,?").ranks(EXTENT)
        assert 0 <= first < 4 <= second < 8
        apart = second != first + 4


@pytest.mark.feature(45)
def test_a_shape_without_dimensions_has_one_rank():
    assert Selection.all().ranks(Shape.unity()) == Selection.any().ranks(Extent([], [])) == [0]
    assert Selection.all().ranks(Shape(["a"], NDSlice.new_row_major([3])).at("a", 2)) == [2]


@pytest.mark.feature(45)
@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("9", IndexError, "index 9 out of range for dimension 'hosts' of size 2"),
        ("*, (1|4)", IndexError, "index 4 out of range for dimension 'gpus' of size 4"),
        ("*,*,*", ValueError, "the selection (*,*,*) has 3 dimensions, {hosts: 2, gpus: 4} has 2"),
        ("0|(0,1),2", ValueError, "the selection (0|(0,1),2) has 3 dimensions, {hosts: 2, gpus: 4} has 2"),
    ],
)
def test_a_selection_that_does_not_fit_says_why(text, kind, why):
    with pytest.raises(kind) as info:
        Selection.from_string(text).ranks(EXTENT)
    assert str(info.value) == why


@pytest.mark.feature(45)
def test_ranks_are_of_a_shape_or_an_extent():
    with pytest.raises(TypeError, match="ranks are selected from a Shape or an Extent, not from 3"):
        Selection.all().ranks(3)


START = "expected '*', '?', an index, a range or '(' "


@pytest.mark.feature(45, "from text")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", START + "at the end"),
        ("zz", START + "at 'zz'"),
        ("(", START + "at the end"),
        ("()", START + "at ')'"),
        ("*,", START + "at the end"),
        ("*|", START + "at the end"),
        ("-1", START + "at '-1'"),
        ("[0:2]", START + "at '[0:2]'"),
        ("²", START + "at '²'"),
        ("(*, 0:4", "expected ')' at the end"),
        ("*;*", "expected the end at ';*'"),
        ("1 2", "expected the end at '2'"),
        ("(*)(*)", "expected the end at '(*)'"),
        ("0:4:0", "expected a positive step at '0'"),
        ("0:4:", "expected a positive step at the end"),
        ("1:99999999999999999999", "too large an index at '99999999999999999999'"),
        (",".join("*" * 17), "17 dimensions, at most 16 at the end"),
        ("(" * 65 + "*" + ")" * 65, "more than 64 parentheses in each other at '*" + ")" * 65 + "'"),
    ],
)
def test_a_text_that_is_no_selection_says_where(text, why):
    with pytest.raises(ValueError) as info:
        Selection.from_string(text)
    assert str(info.value) == f'parse error: Failed to parse selection: {why} (input: "{text}")'


@pytest.mark.feature(45)
def test_long_unions_and_deep_parentheses_are_fine():
    extent = Extent(["a"], [5000])
    assert Selection.from_string("|".join(map(str, range(0, 5000, 2)))).ranks(extent) == list(range(0, 5000, 2))
    assert Selection.from_string("(" * 64 + "7" + ")" * 64).ranks(extent) == [7]
    doubled = Selection.from_string(",".join(["(*|*)"] * 16))
    assert doubled.ranks(Extent(list("abcdefghijklmnop"), [1] * 15 + [2])) == [0, 1]


@pytest.mark.feature(45)
def test_selections_compare_print_and_pickle_by_their_text():
    selection = Selection.from_string(" (*, 0 : 4)")
    assert str(selection) == "(*,0:4)" and repr(selection) == "Selection.from_string('(*,0:4)')"
    assert selection == Selection.from_string("(*,0:4)") != Selection.all()
    assert hash(selection) == hash(Selection.from_string("(*,0:4)"))
    assert Selection.all() == Selection.from_string("*") and Selection.any() == Selection.from_string("?")
    for other in (pickle.loads(pickle.dumps(selection)), copy.deepcopy(selection), eval(repr(selection))):
        assert other == selection and other.ranks(EXTENT) == selection.ranks(EXTENT)


@pytest.mark.feature(45, "from text")
def test_a_selection_is_made_from_text():
    with pytest.raises(TypeError, match="use Selection.from_string"):
        Selection("*")
    with pytest.raises(TypeError, match="a selection is read from a str, not from 3"):
        Selection.from_string(3)
    assert monarch.Selection is Selection and "Selection" in monarch.__all__
