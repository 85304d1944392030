"""The site is built from docs/ with no dead link, and lists its pages for search and for agents."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason=f"{package}: pip install -e '.[dev]' brings it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr  # strict: a warning fails
    return folder


@pytest.mark.slow
def test_every_page_is_built_found_by_search_and_listed_for_agents(site: Path) -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), re.M)
    assert len(listed) == len(set(listed)) and pages < set(listed)
    assert all((site / path).read_text().startswith("# ") for path in listed)
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for path in set(listed) - {"README.md"}:
        html = path.replace("README.md", "index.html").replace(".md", ".html")
        assert (site / html).is_file() and html in found, path


@pytest.mark.slow
def test_the_reference_has_public_names_and_commands(site: Path) -> None:
    text = (site / "api" / "katgym.html").read_text()
    assert all(f'id="katgym.{name}"' in text for name in ("Env", "make", "run_rollout", "tool"))
    commands = (site / "api" / "commands.html").read_text()
    assert all(f'id="katgym-{name}"' in commands for name in ("new", "train-rl", "swe-list"))
    assert 'id="katgym_trainer.pack"' in (site / "api" / "trainer.html").read_text()


@pytest.mark.slow
def test_links_to_sources_lead_to_their_text(site: Path) -> None:
    hrefs = re.findall(r'href="(source/[^"#]+)', (site / "index.html").read_text())
    assert "source/katgym/play/agent_loop.py.txt" in hrefs
    for href in hrefs:
        place = href.removeprefix("source/").removesuffix(".txt")
        assert (site / href).read_text() == (ROOT / place).read_text()
