"""Values near what buggy code computes: which there are, and how a literal is made to hold them."""

from __future__ import annotations

import ast

from hypothesis import assume, given
from hypothesis import strategies as st

from katgym_envs.swe.canaries.canary import Edit
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_plugin_swe_factory.canaries.likeness import Likeness, edit_distance
from katgym_plugin_swe_factory.canaries.near_values import LEVEL, near_values
from katgym_plugin_swe_factory.canaries.rewrite import rewrite

ATOMS = st.one_of(st.text(max_size=8), st.integers(-1000, 1000), st.booleans())
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_words_are_as_near_as_the_right_one() -> None:
    found = near_values("citys", "cities")
    assert [kind for kind, _ in found[:4]] == [LEVEL, LEVEL, LEVEL, "near_between"]
    for kind, word in found:
        assert word.startswith("cit") and word.endswith("s")
        assert edit_distance("citys", word) <= 2
        assert kind != LEVEL or (edit_distance("citys", word), len(word)) == (2, 6)
    assert {"cities", "citys"}.isdisjoint(word for _, word in found)


def test_edit_distance() -> None:
    pairs = {("", ""): 0, ("", "abc"): 3, ("kitten", "sitting"): 3, ("flaw", "lawn"): 2,
             ("ab", "ba"): 2}  # fmt: skip
    assert {(one, other): edit_distance(one, other) for one, other in pairs} == pairs
    assert {(one, other): edit_distance(other, one) for one, other in pairs} == pairs


def test_numbers_lie_between_and_on_the_other_side() -> None:
    assert dict.fromkeys(v for _, v in near_values(3, 5)) == dict.fromkeys([1, 4, 2])
    assert near_values(3, 4) == [(LEVEL, 2)]
    assert {value for _, value in near_values(0, 5)} == {1, 2, 4}  # no negative ones
    assert all(value % 10 == 0 for _, value in near_values(720, 360))
    assert {value for _, value in near_values(1.5, 2.5)} == {0.5, 1.4, 1.0, 1.6, 2.0, 2.4}
    assert all(type(value) is int for _, value in near_values(1.5, 3))


def test_lists_and_dicts_differ_where_the_right_ones_do() -> None:
    for _, value in near_values([1, 2, 3], [1, 5, 3]):
        assert value[0] == 1 and value[2] == 3 and abs(value[1] - 2) <= 3
    assert (LEVEL, [1, 2, 4]) in near_values([1, 2], [1, 2, 3])
    renamed = [value for _, value in near_values({"maxSize": 2}, {"maxsize": 2})]
    assert renamed and all(list(value.values()) == [2] for value in renamed)
    assert {type(value) for _, value in near_values((1, "a"), (2, "a"))} == {tuple}


def test_some_values_have_none_near_them() -> None:
    pairs: list[tuple[object, object]] = [
        (None, "a"), ("a", None), (True, False), (1, "1"), ([1], (1,)), ({1}, {2}), ("a", "a"),
    ]  # fmt: skip
    assert [pair for pair in pairs if near_values(*pair)] == []


@given(VALUES, VALUES)
def test_values_equal_neither_side_and_are_the_same_each_time(base: object, right: object) -> None:
    found = near_values(base, right)
    assert found == near_values(base, right)
    assert len({repr(value) for _, value in found}) == len(found)
    for _, value in found:
        assert value != base and value != right and type(value) is type(right)


@given(st.text("abcdXY 12_", max_size=9), st.text("abcdXY 12_", max_size=9))
def test_texts_are_no_farther_than_the_right_one(base: str, right: str) -> None:
    for _, value in near_values(base, right):
        assert edit_distance(value, base) <= edit_distance(right, base)
        assert Likeness(base, right).nearest([(0, value)]) != []


def changed(source: str, new: object) -> str | None:
    """Return a module of one literal with another value; None if it cannot be written."""
    text = ModuleText(source.encode())
    statement = text.tree.body[-1]
    assert isinstance(statement, ast.Assign)
    edits = rewrite(text, statement.value, new)
    return None if edits is None else apply(source, edits)


def apply(source: str, edits: tuple[Edit, ...]) -> str:
    data = source.encode()
    for edit in sorted(edits, key=lambda e: -e.start):
        data = data[: edit.start] + str(edit.parts[0]).encode() + data[edit.end :]
    return data.decode()


FORMS: list[tuple[str, object, str | None]] = [
    ('x = "cities"\n', "citius", 'x = "citius"\n'),
    ("x = r'a\\d'\n", "b\\d", "x = r'b\\d'\n"),
    ('x = "a\\tb\\n"\n', "a\tc\n", 'x = "a\\tc\\n"\n'),
    ('x = "a\\tb"\n', "a\tb\t", 'x = "a\\tb\\t"\n'),
    ('x = """one\ntwo"""\n', "one\ntoo", 'x = """one\ntoo"""\n'),
    ('x = ("ab"\n  "cd")\n', "abce", 'x = ("ab"\n  "ce")\n'),
    ("x = 'é1'\n", "é2", "x = 'é2'\n"),
    ("x = -12\n", 12, "x = 12\n"),
    ("x = 1.5\n", 2.25, "x = 2.25\n"),
    ("x = [1, # one\n  2]\n", [1, 3], "x = [1, # one\n  3]\n"),
    ("x = [1, 2, 3]\n", [1, 3], "x = [1, 3]\n"),
    ("x = [1, 2]\n", [1], "x = [1]\n"),
    ("x = []\n", [7], "x = [7]\n"),
    ('x = ["a"]\n', ["a", "b"], 'x = ["a", "b"]\n'),
    ("x = {'a': 1, 'b': 2}\n", {"a": 1, "c": 2}, "x = {'a': 1, 'c': 2}\n"),
    ("x = {'a': 1}\n", {"a": 1, "b": 2}, "x = {'a': 1, 'b': 2}\n"),
    ('x = """a\nb"""\n', "ab", None),  # a line end would be lost
    ('x = "ab" "cd"\n', "xx", None),  # more than one token
    ("x = 0x10\n", 17, None),
    ("x = (1,)\n", (), "x = ()\n"),
    ("x = (1, 2)\n", (1,), None),  # a comma would be missing
    ("x = f()\n", 1, None),
    ("x = b'a'\n", "b", None),
    ('x = "a"\n', 'a"', None),
]


def test_a_literal_keeps_its_form() -> None:
    assert [(source, new, changed(source, new)) for source, new, _ in FORMS] == FORMS


@given(VALUES, VALUES, VALUES)
def test_what_is_written_is_read_back(old: object, base: object, new: object) -> None:
    assume(repr(old) != repr(new))
    source = f"x = {old!r}\n"
    for value in [new, *(value for _, value in near_values(base, old)[:6])]:
        made = changed(source, value)
        if made is not None:
            assert repr(ast.literal_eval(made.removeprefix("x = ").strip())) == repr(value)
            assert made.count("\n") == 1
