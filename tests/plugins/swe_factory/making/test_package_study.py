"""What is learnt of a package: which tests may judge a bug, and why a package is left out."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from pathlib import Path

import pytest
from nightly import some_of
from small_lab import in_lab
from toy_set import MAKE_ANY, run_make

from katgym.errors import UsageError
from katgym.sandbox.backends import backend
from katgym_envs.swe.packages import KnownPackage, SourceTree
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.package_study import PackageStudy
from katgym_plugin_swe_factory.studies.sound_tests import random_parts

PRODUCT = """
def larger(a, b):
    if a > b:
        return a
    return b


def clamp(value, low, high):
    return min(max(value, low), high)
"""
SOUND = """
from wordless import clamp, larger

def test_larger():
    assert larger(3, 2) == 3
    assert larger(-1, 4) == 4

def test_clamp():
    assert clamp(7, 1, 5) == 5
    assert clamp(-7, 1, 5) == 1
"""
LUCKY = """
import os

def test_by_luck():
    assert os.urandom(1) > b"\\xe0"
"""
ORDERED = """
SEEN = []

def test_first():
    SEEN.append(1)

def test_needs_the_first():
    assert SEEN
"""
HELPFUL = (
    "SEEN = []\n\n"
    + "".join(f"def test_helps_{i}():\n    SEEN.append(1)\n\n" for i in range(12))
    + "def test_needs_any_of_them():\n    assert SEEN\n"
)
UNCOLLECTABLE = "import a_package_that_is_not_there\n\ndef test_a():\n    assert True\n"
FAILING = "def test_a():\n    assert 1 == 2\n"


def study(**tests: str) -> PackageStudy:
    async def work(lab: PackageLab, found: PackageStudy) -> PackageStudy:
        return found

    files = {f"tests/test_{name}.py": text for name, text in tests.items()}
    return in_lab("wordless", PRODUCT, files, work)


def names(found: PackageStudy) -> set[str]:
    return {qualname for _, qualname in found.functions.values()}


def test_sound_tests_are_known_with_what_they_reach() -> None:
    found = study(sound=SOUND)
    assert names(found) == {"test_larger", "test_clamp"}
    assert found.flaky == found.failing == ()
    reached = {line: tests for (path, line), tests in found.reach.tests.items()}
    assert reached[2] == {"tests/test_sound.py::test_larger"}
    assert reached[8] == {"tests/test_sound.py::test_clamp"}


def test_tests_that_pass_by_luck_or_after_others_judge_nothing() -> None:
    """That some test needs any of many others is found where they run in parts."""
    found = study(sound=SOUND, lucky=LUCKY, ordered=ORDERED, helpful=HELPFUL)
    helping = {f"test_helps_{i}" for i in range(12)}
    assert names(found) == {"test_larger", "test_clamp", "test_first"} | helping
    assert set(found.flaky) - {"tests/test_lucky.py::test_by_luck"} == {
        "tests/test_ordered.py::test_needs_the_first",
        "tests/test_helpful.py::test_needs_any_of_them",
    }
    assert "tests/test_lucky.py::test_by_luck" in {*found.flaky, *found.failing}


def test_parts_hold_every_function_once_a_turn() -> None:
    all_names = [("t.py", f"test_{i}") for i in range(10)]
    parts = random_parts(all_names)
    turns: dict[int, list[tuple[str, str]]] = {}
    for part, seed in parts:
        turns.setdefault(seed, []).extend(part)
    assert len(turns) == 3
    assert all(sorted(turn) == sorted(all_names) for turn in turns.values())
    assert parts == random_parts(reversed(all_names))
    assert [len(part) for part, _ in random_parts([("t.py", "test_a")])] == [1, 1, 1]


def test_a_package_that_cannot_be_used_says_why(subtests: pytest.Subtests) -> None:
    packages = {
        "wordless==1.0: tests do not collect": {"sound": SOUND, "other": UNCOLLECTABLE},
        "no test passes in 3 runs on correct code": {"other": FAILING},
        "do not run to their end": {"other": "def test_a():\n    import os; os._exit(0)\n"},
        "its tests run none of its functions": {"other": "def test_a():\n    assert 1\n"},
    }
    for words, tests in some_of(packages.items(), 3):
        with subtests.test(words), pytest.raises(UsageError, match=words):
            study(**tests)


def test_a_package_that_pytest_brings_along_is_refused() -> None:
    package = KnownPackage(
        name="pluggy",
        version="1.0",
        source=("src/pluggy",),
        tests=("tests/test_*.py",),
        test_roots=("tests",),
    )
    files = {"src/pluggy/__init__.py": b"x = 1\n", "tests/test_a.py": b"def test_a(): pass\n"}
    lab = PackageLab(SourceTree(package=package, files=files), backend("local"))
    with pytest.raises(UsageError, match="installs another copy of 'pluggy'"):
        asyncio.run(lab.__aenter__())


def add_sdist(index: Path, name: str, tests: str) -> None:
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "setup.py": "from setuptools import setup\nsetup()\n",
        f"{name}.py": PRODUCT,
        "tests/test_it.py": tests.replace("wordless", name),
    }
    with tarfile.open(index / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


@pytest.mark.slow
def test_make_leaves_a_broken_package_out_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    add_sdist(index, "katgymsound", SOUND)
    add_sdist(index, "katgymbroken", UNCOLLECTABLE)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    both = ("--package", "katgymsound==1.0", "--package", "katgymbroken==1.0")
    done = run_make(*MAKE_ANY, *both, "--out", str(tmp_path / "set"), "--tasks", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["tasks"]) == 2
    assert "a_package_that_is_not_there" in told["left_out"]["katgymbroken-1.0"]
    alone = run_make(*MAKE_ANY, "--package", "katgymbroken==1.0", "--out", str(tmp_path / "other"))
    assert alone.returncode == 2
    assert "tests do not collect" in alone.stderr and "Traceback" not in alone.stderr


def test_sandboxes_that_ended_while_they_waited_are_replaced() -> None:
    """As all that were made together do at the end of their time."""

    async def work(lab: PackageLab, study: PackageStudy) -> tuple[int, bool]:
        files = tuple(study.tests)
        await asyncio.gather(lab.run(files=files), lab.run(files=files))
        for sandbox in lab._free:
            await sandbox.kill()
        run = await lab.run(files=files)
        return len(lab._all), run.is_finished

    tests = {"tests/test_wordless.py": SOUND}
    assert in_lab("wordless", PRODUCT, tests, work) == (1, True)
