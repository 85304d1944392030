"""Candidates for every kind of assertion really fail on correct code, and look like the test."""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from shop_modules import TESTS, run_modules

from katgym.errors import UsageError
from katgym_envs.swe.canaries import Canary, Role, render
from katgym_envs.swe.packages import open_toy
from katgym_plugin_swe_factory.canaries import find_canaries

CANARIES = find_canaries(TESTS)
# Values that a check with a tolerance, an inequality or a text inside another one may not notice.
LENIENT = {"test_less", "test_approx", "test_not_in", "test_in", "TestUnit::test_in",
           "TestUnit::test_almost", "test_raises", "TestUnit::test_raises_regex"}  # fmt: skip
TOY = open_toy()


def packed(canaries: tuple[Canary, ...]) -> list[list[Canary]]:
    """Return canaries in groups that share no test, so that one run of a module tells of all."""
    groups: list[list[Canary]] = []
    for canary in canaries:
        for group in groups:
            if all(set(canary.tests).isdisjoint(other.tests) for other in group):
                group.append(canary)
                break
        else:
            groups.append([canary])
    return groups


@dataclass(frozen=True)
class Runs:
    """What came of the correct product's tests with canaries in."""

    unchanged: set[str]
    fails: list[tuple[Canary, set[str]]]
    """Canary -> failing functions of those it names."""
    strays: list[set[str]]
    """Functions that fail in a group and are named by none of its canaries."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    groups = packed(CANARIES)
    modules = {
        f"test_c{i}": render(TESTS, [c.spec for c in group]) for i, group in enumerate(groups)
    }
    folder = tmp_path_factory.mktemp("canaries")
    found = run_modules(folder, {"test_unchanged": TESTS, **modules})
    assert {case for cases in found["test_unchanged"].values() for case in cases} == {"passed"}
    fails, strays = [], []
    for i, group in enumerate(groups):
        assert set(found[f"test_c{i}"]) == set(found["test_unchanged"])
        failing = {q for q, cases in found[f"test_c{i}"].items() if set(cases) != {"passed"}}
        fails += [(canary, failing & set(canary.tests)) for canary in group]
        strays.append(failing - {test for canary in group for test in canary.tests})
    return Runs(set(found["test_unchanged"]), fails, strays)


def test_every_test_has_valid_canaries(runs: Runs) -> None:
    valid = Counter(test for _, failing in runs.fails for test in failing)
    assert set(valid) == runs.unchanged
    # What is None for any text has but the turned assertion.
    assert [name for name, number in valid.items() if number < 2] == ["TestUnit::test_is_none"]


def test_canary_fails_only_tests_it_names(runs: Runs) -> None:
    assert not any(runs.strays)


def test_wrong_expected_values_and_turned_assertions_fail(runs: Runs) -> None:
    strict = [
        (canary, failing)
        for canary, failing in runs.fails
        if LENIENT.isdisjoint(canary.tests) and canary.role in (Role.EXPECTED, Role.ASSERTION)
    ]
    assert len(strict) > 40
    assert [canary for canary, failing in strict if not failing] == []


READINGS = [
    ("test_number", "number", "assert add(2, 3) == 6"),
    ("test_number", "operator", "assert add(2, 3) != 5"),
    ("test_number", "to_none", "assert add(2, 3) == None"),
    ("test_is_none", "operator", 'assert find("x") is not None'),
    ("test_is_none", "none", 'assert find("x") is 0'),
    ("test_in", "operator", 'assert "Ada" not in greet("Ada")'),
    ("test_not_in", "operator", "assert 3 in evens(7)"),
    ("test_truth", "negation", 'assert not (parse("4"))'),
    ("test_not", "negation", "assert evens(0)"),
    ("test_less", "operator", "assert add(1, 1) >= 3"),
    ("test_dict", "number", 'assert count(words) == {"b": 3, "a": 1}  # twice b'),
    ("test_dict", "container_swap", 'assert count(words) == {"b": 1, "a": 2}  # twice b'),
    ("test_own_check", "number", 'check("17", 18)'),
    ("test_expected_variable", "to_none", "expected = None"),
    ("test_module_table", "row_swap", 'TABLE = [("1", 22), ("22", 1)]  # text, number'),
    ("TestUnit::test_equal", "assert_method", "self.assertNotEqual(add(1, 1), 2)"),
    ("TestUnit::test_true", "assert_method", 'self.assertFalse(parse("1"))'),
    ("TestUnit::test_equal", "number", "self.assertEqual(add(1, 1), 3)"),
]


def test_candidates_read() -> None:
    made = {
        (
            test,
            canary.kind,
            render(TESTS, [canary.spec]).decode().splitlines()[canary.line - 1].strip(),
        )
        for canary in CANARIES
        for test in canary.tests
    }
    assert set(READINGS) - made == set()


def test_another_exception_is_expected() -> None:
    for test in ("test_raises_only", "TestUnit::test_raises"):
        made = [
            render(TESTS, [c.spec]) for c in CANARIES if c.kind == "exception" and test in c.tests
        ]
        assert len(made) == 2
        assert all(source.count(b"ValueError") == TESTS.count(b"ValueError") - 1 for source in made)


def masked(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value, node.kind = 0, None
    return ast.dump(tree)


def words(source: bytes) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


MODULES = {"shop": TESTS, **{path: TOY.files[path] for path in TOY.test_modules}}


def test_canaries_look_like_the_test(subtests: pytest.Subtests) -> None:
    exceptions = {"ValueError", "TypeError", "KeyError", "IndexError", "AttributeError",
                  "RuntimeError"}  # fmt: skip
    same_shape = ("number", "text_", "boolean", "none", "to_none", "row_swap")
    for name, source in MODULES.items():
        with subtests.test(name):
            for canary in find_canaries(source, per_test=6):
                made = render(source, [canary.spec])
                assert made.count(b"\n") == source.count(b"\n")
                assert abs(len(made) - len(source)) < 80
                new = {word for word in words(made) - words(source) if "assert" not in word}
                assert new <= exceptions, canary
                if canary.kind.startswith(same_shape):
                    assert masked(made) == masked(source), canary
                    assert made != source


def test_specs_survive_json_and_render_the_same() -> None:
    for source in MODULES.values():
        for canary in find_canaries(source):
            again = json.loads(json.dumps(canary.spec))
            assert again == canary.spec
            assert render(source, [again]) == render(source, [canary.spec]) != source


def test_candidates_are_the_same_each_time() -> None:
    assert find_canaries(TESTS) == CANARIES
    assert len({repr(canary.spec) for canary in CANARIES}) == len(CANARIES)


def test_selection_gives_each_test_some_of_several_kinds() -> None:
    chosen = find_canaries(TESTS, per_test=3)
    by_test: defaultdict[str, list[Canary]] = defaultdict(list)
    for canary in chosen:
        for test in canary.tests:
            by_test[test].append(canary)
    assert set(by_test) == {test for canary in CANARIES for test in canary.tests}
    assert all(len(found) >= 2 for found in by_test.values())
    assert set(chosen) <= set(CANARIES)
    assert len({canary.kind for canary in by_test["test_number"]}) >= 2


def test_what_is_not_utf8_python_is_refused(subtests: pytest.Subtests) -> None:
    for source, message in {b"def": "not a Python test module",
                            b"x = '\xff'": "not a Python test module",
                            b"# coding: latin-1\n": "read in UTF-8"}.items():  # fmt: skip
        with subtests.test(source=source), pytest.raises(UsageError, match=message):
            find_canaries(source)


def test_module_without_tests_has_none() -> None:
    assert find_canaries(b"x = 1\ndef helper():\n    assert x == 1\n") == ()
