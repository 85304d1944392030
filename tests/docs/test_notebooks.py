"""The notebooks run from top to bottom, each in a process and a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
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


def test_there_is_one_for_each_kind_of_user() -> None:
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["evaluator", "plugin_author", "researcher", "trainer"]
    page = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert all(f"({name}.ipynb)" in page for name in names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_output_of_a_machine(path: Path) -> None:
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells and all(not c["outputs"] and c["execution_count"] is None for c in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
