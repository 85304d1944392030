"""What is product and what are tests: guessed, and as the table says; the toy repository."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym_envs.swe.packages import (
    KnownPackage,
    Sdist,
    SourceTree,
    list_packages,
    open_toy,
)
from katgym_envs.swe.packages.layout import guess_package

SDIST = Sdist(name="lilac", version="1.2", sha256="ab", path=Path("lilac-1.2.tar.gz"))


def guessed(*paths: str) -> SourceTree:
    files = dict.fromkeys(sorted(paths), b"")
    return SourceTree(package=guess_package(SDIST, files), files=files)


LAYOUTS = (
    # paths; product, test modules, folders on the path of imports
    (("lilac.py", "test_lilac.py", "setup.py"), ("lilac.py",), ("test_lilac.py",), (".",)),
    (
        ("src/lilac/a.py", "tests/test_a.py", "tests/conftest.py", "docs/conf.py"),
        ("src/lilac/a.py",), ("tests/test_a.py",), ("src", "."),
    ),
    (
        ("lilac/a.py", "lilac/b/c.py", "lilac/tests/test_a.py", "lilac/tests/data.py"),
        ("lilac/a.py", "lilac/b/c.py"), ("lilac/tests/test_a.py",), (".",),
    ),
    (("lilac.py", "tests.py"), ("lilac.py",), ("tests.py",), (".",)),
    (("lilac/a.py", "lilac/a_test.py"), ("lilac/a.py",), ("lilac/a_test.py",), (".",)),
)  # fmt: skip


def test_layout_is_guessed() -> None:
    wanted = {paths: rest for paths, *rest in LAYOUTS}
    trees = {paths: guessed(*paths) for paths in wanted}
    assert {
        paths: [tree.product, tree.test_modules, tree.package.python_path]
        for paths, tree in trees.items()
    } == wanted


def test_licence_is_read_from_the_metadata() -> None:
    files = {"PKG-INFO": b"Name: lilac\nLicense: MIT\n", "lilac.py": b"", "test_a.py": b""}
    assert guess_package(SDIST, files).license == "MIT"


def test_package_without_tests_or_product_is_refused() -> None:
    with pytest.raises(UsageError, match=r"lilac==1\.2 holds no tests"):
        guessed("lilac.py")
    with pytest.raises(UsageError, match=r"lilac==1\.2 holds no Python modules besides"):
        guessed("tests/test_a.py", "setup.py")


def test_patterns_and_exclusions_choose_test_modules() -> None:
    package = KnownPackage(
        name="lilac", version="1", source=("lilac",), tests=("**/test_*.py",),
        test_roots=("lilac/tests", "tests"), excluded={"tests/test_c.py": "it is slow"},
    )  # fmt: skip
    paths = ["lilac/a.py", "lilac/tests/test_a.py", "tests/data.txt", "tests/test_b.py",
             "tests/test_c.py", "tests/test_d.pyc"]  # fmt: skip
    tree = SourceTree(package=package, files=dict.fromkeys(paths, b""))
    assert tree.test_modules == ("lilac/tests/test_a.py", "tests/test_b.py")
    assert tree.product == ("lilac/a.py",)
    assert "tests/test_c.py" not in tree.test_files
    assert "tests/data.txt" in tree.test_files


def test_digest_of_a_tree_tells_paths_from_contents() -> None:
    package = open_toy().package
    trees = [{"ab": b"c"}, {"a": b"bc"}, {"ab": b"", "c": b""}, {}]
    assert len({SourceTree(package=package, files=files).sha256 for files in trees}) == 4


def test_entries_of_the_table_are_complete_and_there_are_some_for_every_split(
    subtests: pytest.Subtests,
) -> None:
    packages = list_packages().values()
    for package in packages:
        with subtests.test(package=package.name):
            assert re.fullmatch(r"[0-9a-f]{64}", package.sha256 or "")
            assert package.license
            assert package.source
            assert package.tests
            assert package.test_roots
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in package.all_requirements)
            assert all(package.excluded.values())
            paths = (*package.source, *package.tests, *package.test_roots, *package.excluded)
            assert not any(path.startswith("/") or ".." in path.split("/") for path in paths)
    assert len(packages) >= 6
    assert {package.split for package in packages} == {"train", "validation", "test"}
    assert len({package.sha256 for package in packages}) == len(packages)


def run_in(folder: Path, files: Mapping[str, bytes], *arguments: str) -> tuple[int, str]:
    """Return exit code and output of a Python with these files in its directory."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_tests_of_the_toy_repository_pass(tmp_path: Path) -> None:
    tree = open_toy()
    options = ("-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")
    code, said = run_in(tmp_path, tree.files, "pytest", *options, *tree.test_modules)
    assert code == 0, said
    assert len(tree.product) == 5
    assert len(tree.test_modules) == 4


def test_readme_of_the_toy_repository_is_right(tmp_path: Path) -> None:
    tree = open_toy()
    files = {path: tree.files[path] for path in (*tree.product, "README.md")}
    assert run_in(tmp_path, files, "doctest", "README.md") == (0, "")
