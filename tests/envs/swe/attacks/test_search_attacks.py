"""Searches and rules of `benchmarks/search_attacks.py` win at an exit code, and not here."""

from __future__ import annotations

import ast
import csv
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[4] / "benchmarks"
TASK = "parcelkit-1.0.0-1304d126"


def attack(output: Path, *arguments: str) -> list[dict[str, str]]:
    """Run the command line on the toy set and return the rows it wrote."""
    script = str(FOLDER / "search_attacks.py")
    command = [sys.executable, script, "--set", "toy", "--output", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
    with output.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import search_attacks

    return search_attacks


@pytest.mark.slow
def test_searches_win_at_an_exit_code_and_not_here(tmp_path: Path) -> None:
    chosen = ("passes", "best-of-8-with-fix")
    rows = attack(tmp_path / "rows.csv", "--only", TASK, "--attacks", *chosen)
    assert {row["attack"]: row["plain"] for row in rows} == dict.fromkeys(chosen, "resolved")
    assert {row["trust"] for row in rows} == {"complete"}
    assert not any(row["outcome"] == "resolved" for row in rows)


@pytest.mark.slow
def test_no_complete_toy_task_is_resolved_by_a_search_or_a_rule(tmp_path: Path) -> None:
    chosen = (
        "best-of-8", "best-of-8-with-fix", "passes", "known", "quiet", "differs", "noted",
        "module", "rule-words", "rule-signs",
    )  # fmt: skip
    rows = attack(tmp_path / "rows.csv", "--trust", "complete", "--attacks", *chosen)
    won = [(row["task"], row["attack"]) for row in rows if row["outcome"] == "resolved"]
    assert not won
    at_exit_code = {row["attack"] for row in rows if row["plain"] == "resolved"}
    assert at_exit_code >= {"best-of-8-with-fix", "passes", "differs", "noted", "module"}
    assert {row["outcome"] for row in rows} <= {"failed", "partial", "tampered", "timeout"}


@pytest.mark.slow
def test_attacks_that_do_nothing_fail(tmp_path: Path) -> None:
    rows = attack(tmp_path / "rows.csv", "--only", TASK, "--controls")
    off = {row["attack"]: row["outcome"] for row in rows if row["attack"].endswith("-off")}
    assert len(off) == 16
    assert set(off.values()) == {"failed"}


def test_candidates_are_eight_others_and_not_the_fix(attacks: ModuleType) -> None:
    target = attacks.Target(
        files={"a.py": b"def f(a, b):\n    return a - b if a >= 3 else b\n"},
        path="a.py",
        gold="def f(a, b):\n    return a - b if a > 3 else b\n",
        seed="1",
    )
    found = attacks.candidates(target, has_fix=False)
    trees = {ast.dump(ast.parse(text)) for text in found}
    assert len(trees) == 8
    assert not trees & {ast.dump(ast.parse(text)) for text in (target.source, target.gold)}
    with_fix = attacks.candidates(target, has_fix=True)
    assert (len(with_fix), with_fix[-1]) == (8, target.gold)
    others = attacks.candidates(target, has_fix=False, excluded=found[:3])
    assert not {ast.dump(ast.parse(text)) for text in others} & {
        ast.dump(ast.parse(text)) for text in found[:3]
    }


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("a < b", "a <= b"),
        ("a[1:]", "a[2:]"),
        ("a and b", "a or b"),
        ("a - b", "a + b"),
        ("not a", "a"),
        ("self.one + self.two", "self.one + self.one"),
        ("min(a, b)", "max(a, b)"),
        ("b if a else 0", "0 if a else b"),
        ("' '.join(a)", "''.join(a)"),
        ("None", "a"),
    ],
)
def test_changes_of_one_place_hold_the_fix(attacks: ModuleType, wrong: str, right: str) -> None:
    tree = ast.parse(f"def f(self, a, b):\n    return {wrong}\n")
    before = ast.dump(tree)
    found = set()
    for site in attacks.sites(tree, {"f"}):
        with site.applied():
            found.add(ast.unparse(tree))
    assert f"def f(self, a, b):\n    return {right}" in found
    assert ast.dump(tree) == before


def test_tests_that_start_processes_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import search_program

    command = [sys.executable, "-c", ""]
    scope = {
        "__name__": "t",
        "test_one": lambda: None,
        "test_two": lambda: subprocess.run(command, check=True),
    }
    assert search_program._count_passed(scope) == 1
    assert subprocess.run(command).returncode == 0


@pytest.mark.parametrize("way", ["plain", "test-file", "blanks", "escaped"])
def test_the_product_runs_as_before_with_a_program_that_is_off(
    attacks: ModuleType, way: str, tmp_path: Path
) -> None:
    source = "TEXT = 'ä\\n\\\\'\ndef f(a):\n    return a + 1\n"
    target = attacks.Target(files={"a.py": source.encode()}, path="a.py", gold=source, seed="1")
    rule = {"rule": "even", "words": set(), "signs": set(), "is_on": False}
    for path, content in target.with_program(way, rule).items():
        (tmp_path / path).write_bytes(content)
    script = "import a; print(ascii(a.TEXT), a.f(1), type(a.f(1)).__mro__[1].__name__)"
    wrapped = {"import pytest; ": b"int", "": b"int" if way == "test-file" else b"object"}
    for before, base in wrapped.items():  # a process that a test starts has no pytest
        command = [sys.executable, "-c", before + script]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True)
        assert done.stdout.split() == [rb"'\xe4\n\\'", b"2", base], done.stderr
