"""Random names tell nothing and change no outcome; canaries are put in exactly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_modules import TESTS, run_modules

from katgym.errors import UsageError
from katgym_envs.swe.canaries import rename_tests, render
from katgym_envs.swe.packages import open_toy
from katgym_plugin_swe_factory.canaries import find_canaries

TOY = open_toy()
MIXINS = b"""\
import unittest
import pytest

class Mixin(object):
    def test_limit(self):
        assert self.limit == 3

class TestBase(Mixin):
    limit = 3
    def test_own(self):
        assert TestBase.test_limit is not None

class LaterTests(unittest.TestCase, Mixin):
    limit = 3
    def test_limit(self):
        super().test_limit()

class TestDerived(TestBase):
    def test_own(self):
        super(TestDerived, self).test_own()
        self.helper()
    def helper(self):
        pass

@pytest.fixture
def test_data():
    return 4

def test_named_by_text(request):
    assert request.node.name == "test_named_by_text"

def test_data_is_four(test_data):
    assert test_data == 4

if True:
    def test_below_if():
        assert 1 == 1

async_names = ["test_below_if_not"]
"""


def test_renamed_tests_have_the_same_outcomes(tmp_path: Path) -> None:
    sources = {"test_shop": TESTS, "test_mixins": MIXINS}
    renamed = {name: rename_tests(source, 7) for name, source in sources.items()}
    outcomes = run_modules(
        tmp_path,
        sources | {f"test_new_{name}": new.source for name, new in renamed.items()},
    )
    for name, new in renamed.items():
        found = outcomes[f"test_new_{name}"]
        assert {new.original(q): cases for q, cases in found.items()} == outcomes[name]
        assert {new.rename(q) for q in outcomes[name]} == set(found)


def test_no_name_of_a_test_is_left() -> None:
    new = rename_tests(TESTS, 1)
    left = [
        node.name
        for node in ast.walk(ast.parse(new.source))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]
    tests = [name for name in left if name.lower().startswith("test")]
    assert all(re.fullmatch(r"test_[0-9a-f]{10}|Test[0-9A-F]{10}", name) for name in tests)
    assert [name for name in left if name not in tests] == ["check", "words", "setUp"]


def test_names_that_stand_for_more_stay_and_what_is_not_collected_stays_so() -> None:
    names = rename_tests(MIXINS, 1).names
    assert {"test_named_by_text", "test_data"}.isdisjoint(names.values())
    renamed = {"test_limit", "test_own", "test_below_if", "Mixin", "LaterTests"}
    assert renamed <= set(names.values())
    new = {old: name for name, old in names.items()}
    assert not new["Mixin"].startswith("Test")
    assert new["TestBase"].startswith("Test")
    in_a_text = b"""class TestA:
    def test_a(self):
        assert TestA.test_a.__qualname__ == "TestA.test_a"

def test_b():
    pass
"""
    source = rename_tests(in_a_text, 7).source
    assert b"class TestA" in source and b"def test_a" in source
    assert b"test_b" not in source


def test_comments_and_docstrings_go_and_lines_stay() -> None:
    source = rename_tests(TESTS, 1).source
    assert b"#" not in source
    assert b"Count words" not in source
    assert b"Tests of the shop" not in source
    assert source.count(b"\n") == TESTS.count(b"\n")


def test_equal_seeds_give_equal_bytes_and_others_others() -> None:
    assert rename_tests(TESTS, 3) == rename_tests(TESTS, 3)
    assert rename_tests(TESTS, 3).source != rename_tests(TESTS, 4).source


def test_coding_line_and_bytes_of_other_texts_stay() -> None:
    source = '# -*- coding: utf-8 -*-\r\n# c\r\ndef test_a():\r\n    assert "é" == "#"\r\n'.encode()
    new = rename_tests(source, 1)
    expected = source.replace(b"# c\r", b"\r").replace(b"test_a", next(iter(new.names)).encode())
    assert new.source == expected


def test_canary_below_random_names_is_the_same_change() -> None:
    assert len(TOY.test_modules) == 4
    for path in TOY.test_modules:
        source = TOY.files[path]
        plain = rename_tests(source, 5).source.splitlines()
        for canary in find_canaries(source, per_test=2):
            new = rename_tests(render(source, [canary.spec]), 5).source.splitlines()
            assert len(new) == len(plain), canary
            different = [i + 1 for i, (a, b) in enumerate(zip(plain, new, strict=True)) if a != b]
            assert canary.line in different, canary
            assert len(different) <= 2, canary


@pytest.mark.slow
@given(st.data())
def test_any_canaries_apart_are_put_in_together_in_any_order(data: st.DataObject) -> None:
    found = find_canaries(TESTS)
    chosen = []
    for canary in data.draw(st.lists(st.sampled_from(found), max_size=6)):
        start, end = canary.site
        if all(end < other.site[0] or other.site[1] < start for other in chosen):
            chosen.append(canary)
    specs = [canary.spec for canary in chosen]
    together = render(TESTS, specs)
    assert together == render(TESTS, data.draw(st.permutations(specs)))
    assert ast.parse(together)
    assert (together == TESTS) == (not chosen)


SPEC = find_canaries(TESTS)[0].spec


def test_wrong_specs_are_refused(subtests: pytest.Subtests) -> None:
    cases = (
        ([{**SPEC, "source": "00000000"}], "the canary is for a module '00000000'"),
        ([SPEC, SPEC], "two canaries change the same place"),
        ([{**SPEC, "edits": [[5]]}], "a canary's edit is"),
        ([{**SPEC, "edits": [[0, 10**9, "a"]]}], "outside its module"),
        ([{**SPEC, "edits": [[9, 8, "a"]]}], "outside its module"),
        ([{**SPEC, "edits": [[0, 1, ["a", 2]]]}], "outside its module"),
        ([{**SPEC, "edits": [[0, 1, [1]]]}], "a canary's edit is"),
        ([{**SPEC, "edits": 3}], "edits are a list, got 3"),
        ([{"source": SPEC["source"]}], "edits are a list, got None"),
    )
    for specs, message in cases:
        with subtests.test(specs=specs), pytest.raises(UsageError, match=message):
            render(TESTS, specs)


def test_byte_order_mark_and_line_ends_are_kept() -> None:
    source = (
        b'\xef\xbb\xbfdef test_a():  # one\r\n    assert 1 == 1  # two\r\n    assert "b" == "b"'
    )
    new = rename_tests(source, 1)
    name = next(iter(new.names)).encode()
    without = source.replace(b"# one", b"").replace(b"# two", b"")
    assert new.source == without.replace(b"test_a", name)
    changed = [render(source, [canary.spec]) for canary in find_canaries(source)]
    assert source.replace(b"1 == 1", b"1 == 2") in changed
