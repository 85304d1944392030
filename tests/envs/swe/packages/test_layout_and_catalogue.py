"""What is product and what are tests: guessed, and as the table says; the toy repository."""

from __future__ import annotations

import re
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("paths", "product", "tests", "python_path"),
    [
        (["lilac.py", "test_lilac.py", "setup.py"], ("lilac.py",), ("test_lilac.py",), (".",)),
        (
            ["src/lilac/a.py", "tests/test_a.py", "tests/conftest.py", "docs/conf.py"],
            ("src/lilac/a.py",),
            ("tests/test_a.py",),
            ("src", "."),
        ),
        (
            ["lilac/a.py", "lilac/b/c.py", "lilac/tests/test_a.py", "lilac/tests/data.py"],
            ("lilac/a.py", "lilac/b/c.py"),
            ("lilac/tests/test_a.py",),
            (".",),
        ),
        (["lilac.py", "tests.py"], ("lilac.py",), ("tests.py",), (".",)),
        (["lilac/a.py", "lilac/a_test.py"], ("lilac/a.py",), ("lilac/a_test.py",), (".",)),
    ],
)
def test_layout_is_guessed(
    paths: list[str], product: tuple[str, ...], tests: tuple[str, ...], python_path: tuple[str, ...]
) -> None:
    tree = guessed(*paths)
    assert tree.product == product
    assert tree.test_modules == tests
    assert tree.package.python_path == python_path


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


@pytest.mark.parametrize("package", list_packages().values(), ids=list(list_packages()))
def test_entry_of_the_table_is_complete(package: KnownPackage) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", package.sha256 or "")
    assert package.license
    assert package.split in ("train", "validation", "test")
    assert package.source
    assert package.tests
    assert package.test_roots
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in package.all_requirements)
    assert all(reason for reason in package.excluded.values())
    paths = (*package.source, *package.tests, *package.test_roots, *package.excluded)
    assert not any(path.startswith("/") or ".." in path.split("/") for path in paths)


def test_table_holds_packages_for_every_split() -> None:
    splits = [package.split for package in list_packages().values()]
    assert len(splits) >= 6
    assert set(splits) == {"train", "validation", "test"}
    assert len({package.sha256 for package in list_packages().values()}) == len(splits)


@pytest.mark.slow
def test_tests_of_the_toy_repository_pass(tmp_path: Path) -> None:
    tree = open_toy()
    for path, content in tree.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".",
               "-p", "no:cacheprovider", *tree.test_modules]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert len(tree.product) == 5
    assert len(tree.test_modules) == 4


def test_readme_of_the_toy_repository_is_right(tmp_path: Path) -> None:
    tree = open_toy()
    for path in (*tree.product, "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(tree.files[path])
    command = [sys.executable, "-m", "doctest", "README.md"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")
