"""The guides' Python blocks run, top to bottom, each page in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
PAGES = sorted([*DOCS.rglob("*.md"), README])
SLOW = {
    "add-a-sandbox-backend.md", "grading.md", "learner.md", "many-ranks.md", "models.md",
    "packed-forest.md", "swe-tasks.md", "vllm.md", "write-an-environment.md",
}  # fmt: skip
"""Pages whose blocks take more than two seconds together."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in PAGES
        if BLOCK.search(page.read_text())
    ],
)
def test_python_blocks_run(page):
    code = "\n".join(BLOCK.findall(page.read_text()))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_smallest_env_has_under_forty_lines():
    page = (DOCS / "guides" / "write-an-environment.md").read_text()
    first = BLOCK.findall(page)[0]
    assert "class Counting(katgym.Env)" in first
    assert len([line for line in first.splitlines() if line.strip()]) < 40
