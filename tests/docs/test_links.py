"""Pages link to what exists and name true symbols; every folder of code is described."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("*.md"))
ENTRY = re.compile(r"\[`([^`\]]+\.py)`\]\(([^)]+)\)(?: \(((?:`[\w.]+`(?:, )?)+)\))?")
README_NAMES = ("agent_loop.py", "scheduler.py", "grader.py", "token_trie.py")
PACKAGES = (
    "katgym", "envs/katgym_envs", "trainer/katgym_trainer", "kernels/katgym_kernels", "plugins",
)  # fmt: skip


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Return the names that a module defines at its top, and `Class.name` for those in classes."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
            elif isinstance(node, ast.ClassDef):
                names.add(prefix + node.name)
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    visit(ast.parse(path.read_text()).body, "")
    return frozenset(names)


def check_entries(page: Path, text: str) -> list[str]:
    """Check each file and symbol that a text of a page names; return the files."""
    files = []
    for name, target, symbols in ENTRY.findall(text):
        path = (page.parent / target).resolve()
        assert path.is_file(), f"{page.name} links to {target}"
        assert path == ROOT / name, f"{page.name} calls {target} {name}"
        for symbol in re.findall(r"`([\w.]+)`", symbols):
            assert symbol in defined_names(path), f"{page.name}: {name} defines no {symbol}"
        files.append(name)
    return files


def test_links_lead_somewhere() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith(("http:", "https:"))
    ]
    assert len(pages) > 40 and len(links) > 300
    missing = [f"{page.name}: {to}" for page, to in links if not (page.parent / to).exists()]
    assert missing == []


def test_a_concept_ends_with_its_code() -> None:
    assert CONCEPTS
    for page in CONCEPTS:
        last = page.read_text().rstrip("\n").split("\n\n")[-1]
        assert last.startswith("Code: "), f"{page.name} does not end with its source files"
        assert len(check_entries(page, last)) == last.count(".py`]") >= 1, page.name


def test_where_to_find_things_is_true() -> None:
    page = ROOT / "docs" / "README.md"
    _, _, found = page.read_text().partition("Where to find in the code:")
    rows = [line for line in found.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 12
    assert all(check_entries(page, row) for row in rows)


def test_the_readme_links_loop_scheduler_grader_and_trie() -> None:
    page = ROOT / "README.md"
    links = {(page.parent / m).name for m in re.findall(r"\]\(([^)#]+\.py)\)", page.read_text())}
    assert set(README_NAMES) <= links
    assert "(docs/README.md)" in page.read_text()


def test_the_time_of_the_tests_is_the_same_everywhere() -> None:
    pattern = re.compile(r"unmarked tests\W+about (\d+) minutes on two cores")
    told = [
        pattern.findall((ROOT / name).read_text())
        for name in ("README.md", "CONTRIBUTING.md", "Makefile")
    ]
    assert [len(times) for times in told] == [1, 1, 1] and told[0] == told[1] == told[2]


def test_every_folder_of_code_is_described() -> None:
    """By a README of its own, or by its name in the README of a folder above."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    folders = {Path(name).parent for name in listed if name.endswith(".py")}
    assert len(folders) > 50
    missing = [folder for folder in sorted(folders) if not is_described(folder)]
    assert missing == []


def is_described(folder: Path) -> bool:
    """Look in the nearest README; a package's own folder is what the README beside it is of."""
    for above in (folder, *folder.parents):
        readme = ROOT / above / "README.md"
        if above != Path() and readme.exists():
            names = list(folder.relative_to(above).parts)
            if names and names[0].startswith("katgym_"):
                del names[0]
            lines = readme.read_text().splitlines()
            return not names or any(all(f"{name}/" in line for name in names) for line in lines)
    return False
