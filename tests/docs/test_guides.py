"""What guides and notebooks show runs: Python blocks, notebooks and one guide's rehearsal.

Not here: their shell commands (`test_guide_pages.py`, `test_first_hour_pages.py`).
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
BY_DAY = {"README.md", "quickstart.md"}
"""Pages whose blocks run by day; those of all pages run nightly."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
RUN = """
import ast, asyncio, inspect, json, sys

async def run():
    names = {"__name__": "__main__"}
    for cell in json.load(open(sys.argv[1]))["cells"]:
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            made = eval(code, names)
            if inspect.iscoroutine(made):
                await made

asyncio.run(run())
"""
"""Runs the cells in one event loop, as Jupyter does."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[] if page.name in BY_DAY else [pytest.mark.slow])
        for page in PAGES
        if BLOCK.search(page.read_text())
    ],
)
def test_python_blocks_run(page: Path) -> None:
    """From top to bottom, each page in a process of its own."""
    code = "\n".join(BLOCK.findall(page.read_text()))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_smallest_env_has_under_forty_lines() -> None:
    page = (DOCS / "guides" / "write-an-environment.md").read_text()
    first = BLOCK.findall(page)[0]
    assert "class Counting(katgym.Env)" in first
    assert len([line for line in first.splitlines() if line.strip()]) < 40


def test_there_is_a_notebook_for_each_kind_of_user() -> None:
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["evaluator", "plugin_author", "researcher", "trainer"]
    page = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert all(f"({name}.ipynb)" in page for name in names)


def test_notebooks_hold_no_output_of_a_machine() -> None:
    for path in NOTEBOOKS:
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        assert cells, path
        assert all(not c["outputs"] and c["execution_count"] is None for c in cells), path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_rehearsal_of_the_lora_guide_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, its files and commands without an edit, but for the number of steps.

    The run is cut to two steps: what it begins with succeeds at times already.
    """
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "guides" / "train-lora.md").read_text()
    rehearsal = page.partition("## First on a CPU")[2]
    for name, text in (("lora.toml", page), ("tiny.toml", rehearsal)):
        Path(name).write_text(text.partition("```toml\n")[2].partition("```")[0])
    commands = re.findall(r"^\$ katgym ((?:.*\\\n)*.*)$", rehearsal, re.M)
    made, imitated, played = (shlex.split(text.replace("\\\n", " ")) for text in commands)
    assert main(made) == 0 and main(imitated) == 0
    assert "--preset" in played and main([*played, "--steps", "2"]) == 0
    lines = [json.loads(line) for line in Path("runs/lora-cpu/eval.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2]
    assert all(line["success"] > 0 for line in lines)
    assert (Path("runs/lora-cpu/model") / "config.json").is_file()
