"""The figures of the house: on a made-up repository, each with what stands behind it.

Not here: this repository's own figures, which `make check` holds to their budget.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402  # a script, not an installed package

CLI = """
import argparse


def build_parser():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    run = commands.add_parser("run")
    run.add_argument("-o", "--out", help="folder")
    run.add_argument("--fast", action="store_true")
    commands.add_parser("look").add_argument("--out", help="folder")
    return parser
"""


def parsed(**sources: str) -> dict[str, ast.Module]:
    """Modules of package `katgym` by name, as `find_circles` takes them."""
    return {f"katgym/{name}.py": ast.parse(source) for name, source in sources.items()}


@pytest.mark.parametrize(
    "source",
    [
        "import katgym.b",
        "from katgym import b",
        "from katgym.b import thing",
        "def f():\n    from katgym.b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from katgym.b import Thing",
    ],
)
def test_a_circle_is_found_whatever_the_import(source: str) -> None:
    trees = parsed(a=source, b="from katgym.c import x", c="import katgym.a", d="import katgym.a")
    assert house.find_circles(trees) == [["katgym.a", "katgym.b", "katgym.c"]]


def test_a_package_and_its_module_are_a_circle_if_both_import_each_other() -> None:
    trees = {
        "katgym/__init__.py": ast.parse("from katgym.a import x"),
        "katgym/a.py": ast.parse("import katgym.b"),
        "katgym/b.py": ast.parse("from katgym import y"),
    }
    assert house.find_circles(trees) == [["katgym", "katgym.a", "katgym.b"]]
    trees["katgym/b.py"] = ast.parse("from katgym import c")
    trees["katgym/c.py"] = ast.parse("")
    assert house.find_circles(trees) == []


def test_a_long_chain_is_no_circle_and_needs_no_recursion() -> None:
    trees = parsed(**{f"m{k}": f"import katgym.m{k + 1}" for k in range(3000)}, m3000="")
    assert house.find_circles(trees) == []


@pytest.mark.parametrize("name", ["_answered", "kept_rows", "told", "_renamed_call", "shared"])
def test_a_participle_is_told_from_a_verb(name: str) -> None:
    assert house.is_participle(name)


@pytest.mark.parametrize(
    "name", ["_answer", "feed", "need_more", "embed", "seed_all", "put", "add"]
)
def test_a_verb_is_no_participle(name: str) -> None:
    assert not house.is_participle(name)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small repository with one of everything that is counted."""
    files = {
        "katgym/__init__.py": "",
        "katgym/loose.py": '"""What is loose."""\n\n\ndef told():\n    return _once()\n\n\n'
        "def _once():\n    return _twice() + _twice()\n\n\ndef _twice():\n    return 1\n",
        "katgym/cli/__init__.py": "",
        "katgym/cli/main.py": CLI,
        **{f"envs/katgym_envs/wide/m{k}.py": "class Row: ...\n" for k in range(13)},
        "envs/katgym_envs/swe/data/toy/ignored.py": "x = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_every_figure_of_a_repository(repo: Path) -> None:
    figures = house.measure(repo)
    assert figures.counts["lines_katgym"] == 13 + 12
    assert figures.counts["lines_envs"] == figures.counts["lines"] - 25 == 13
    assert figures.places["loose_modules"] == ["katgym/loose.py"]
    assert figures.places["wide_folders"] == ["envs/katgym_envs/wide 13"]
    assert figures.counts["function_lines_max"] == 8
    assert figures.counts["one_caller_percent"] == 25.0
    assert figures.places["one_caller_percent"] == ["katgym/loose.py:8 _once 2"]
    assert figures.counts["participle_percent"] == 25.0
    assert figures.places["riddle_headers"] == ["katgym/loose.py What is loose."]
    assert figures.counts["classes_named_alike"] == 1
    assert figures.counts["circles"] == 0
    assert figures.counts["commands"] == 2
    assert figures.counts["options"] == 3
    assert figures.places["options_distinct"] == ["--out 2", "--fast 1"]
    assert figures.places["options_without_help"] == ["katgym run --fast"]


def test_a_readme_may_say_why_a_folder_is_wide(repo: Path) -> None:
    (repo / "envs/katgym_envs/wide/README.md").write_text("13 modules: a rule each.\n\n- `m0.py`\n")
    assert house.measure(repo).counts["wide_folders"] == 0
    (repo / "envs/katgym_envs/wide/README.md").write_text("9 modules: a rule each.\n")
    assert house.measure(repo).counts["wide_folders"] == 1  # it has grown since


def test_check_fails_over_the_budget_and_names_the_figure(repo: Path) -> None:
    (repo / "tools").mkdir()
    script = repo / "tools/house.py"
    script.write_text((ROOT / "tools/house.py").read_text())
    budget = repo / "tools/house_budget.toml"

    def check() -> tuple[int, str]:
        command = [sys.executable, str(script), "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    budget.write_text("options = 3\n")
    assert check()[0] == 0
    budget.write_text("options = 2\n")
    code, text = check()
    assert code == 1
    assert "over budget: options;" in text
    budget.write_text("optoins = 3\n")
    assert check()[0] == 1
