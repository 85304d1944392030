"""The figures of the house: on a made-up repository, each with what stands behind it.

Not here: this repository's own figures, which `make check` looks at.
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


def test_a_circle_is_found_whatever_the_import() -> None:
    for source in (
        "import katgym.b",
        "from katgym import b",
        "from katgym.b import thing",
        "def f():\n    from katgym.b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from katgym.b import Thing",
    ):
        trees = parsed(
            a=source, b="from katgym.c import x", c="import katgym.a", d="import katgym.a"
        )
        assert house.find_circles(trees) == [["katgym.a", "katgym.b", "katgym.c"]], source


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


def test_rooms_are_a_circle_though_none_of_their_modules_are() -> None:
    trees = {
        "katgym/play/loop.py": ast.parse("import katgym.cli.deep.words"),
        "katgym/cli/main.py": ast.parse("from katgym.play import loop"),
        "katgym/cli/deep/words.py": ast.parse(""),
        "katgym/errors.py": ast.parse("import katgym.cli.main"),
    }
    assert house.find_circles(trees) == []
    assert house.room_circles(trees) == [["katgym.cli", "katgym.play"]]
    trees["katgym/play/loop.py"] = ast.parse("import katgym.errors")
    assert house.room_circles(trees) == [["katgym.cli", "katgym.errors", "katgym.play"]]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small repository with one of everything that is counted."""
    files = {
        "katgym/__init__.py": "",
        "katgym/loose.py": "import katgym.cli.main\nx = 1\n",
        "katgym/cli/__init__.py": "",
        "katgym/cli/main.py": CLI,
        "katgym/cli/words.py": "import katgym.loose\ny = 2\n",
        "envs/katgym_envs/math/plugin.py": "class Row: ...\n",
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
    assert figures.counts["lines_katgym"] == 4 + 12
    assert figures.counts["lines_envs"] == figures.counts["lines"] - 16 == 1
    assert figures.counts["modules"] == 6
    assert figures.places["circles"] == []
    assert figures.places["room_circles"] == ["katgym.cli <-> katgym.loose"]
    assert figures.counts["commands"] == 2
    assert figures.counts["options"] == 3
    assert figures.places["options_distinct"] == ["--out 2", "--fast 1"]
    assert figures.places["options_without_help"] == ["katgym run --fast"]


def test_check_fails_where_an_option_has_no_help_and_names_it(repo: Path) -> None:
    def check() -> tuple[int, str]:
        command = [sys.executable, str(ROOT / "tools/house.py"), "--repo", str(repo), "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, text = check()
    assert code == 1
    assert text.endswith("options_without_help, of which there may be none:\n  katgym run --fast\n")
    parser = repo / "katgym/cli/main.py"
    parser.write_text(parser.read_text().replace('"--fast",', '"--fast", help="quick",'))
    assert check()[0] == 0
