"""What is learnt of a package: which tests may judge a bug, and why a package is left out."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
import tarfile
from pathlib import Path

import pytest
from faulty_backend import BusyBackend, Request
from nightly import some_of
from small_lab import in_lab
from toy_set import MAKE_ANY, run_make

from katgym.errors import UsageError
from katgym.sandbox import ExecResult, SandboxError
from katgym.sandbox.backends import backend
from katgym.sandbox.operations import PreloadedCall
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
    assert reached[2] == ("tests/test_sound.py::test_larger",)
    assert reached[8] == ("tests/test_sound.py::test_clamp",)


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


UNCERTAIN = """
import asyncio, datetime, os, queue, random, secrets, signal, threading, time, uuid
import pytest
from wordless import larger

def test_time(): assert time.time() > 0
def test_monotonic(): assert time.monotonic_ns()
def test_imported(): assert perf_counter() >= 0
def test_sleep(): time.sleep(0.001)
def test_now(): assert datetime.datetime.now()
def test_today(): assert datetime.date.today()
def test_subclass(): assert Day.today()
def test_random(): assert random.random() < 1
def test_choice(): assert random.choice("ab") in "ab"
def test_no_seed(): assert random.Random().random() < 1
def test_urandom(): assert len(os.urandom(2)) == 2
def test_secrets(): assert secrets.token_hex(2)
def test_uuid(): assert uuid.uuid4()
def test_queue():
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=0.001)
def test_event(): assert not threading.Event().wait(0.001)
def test_async_sleep(): asyncio.run(asyncio.sleep(0.001))
def test_alarm():
    signal.alarm(100)
    signal.alarm(0)
def test_thread():
    thread = threading.Thread(target=time.time)
    thread.start()
    thread.join()
@pytest.fixture
def clock(): return time.time()
def test_fixture(clock): assert clock
@pytest.mark.parametrize("what", [1, 2])
def test_one_case(what): assert what == 1 or time.time()

from time import perf_counter
class Day(datetime.date): pass
"""
CERTAIN = """
import asyncio, datetime, logging, random, subprocess, tempfile, threading, time
from wordless import larger

def test_seeded():
    random.seed(5)
    assert random.random() == 0.6229016948897019
def test_own(): assert random.Random(3).random() == 0.23796462709189137
def test_replaced(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 7)
    assert larger(time.time(), 3) == 7
def test_given(): assert time.gmtime(0).tm_year == datetime.date(1970, 1, 1).year
def test_tmp(tmp_path): assert tmp_path.exists()
def test_tempfile():
    with tempfile.TemporaryDirectory() as folder:
        assert folder
def test_async():
    async def go():
        await asyncio.sleep(0)
        return 3
    assert asyncio.run(go()) == 3
def test_logging(): logging.getLogger("x").warning("y")
def test_thread():
    seen = []
    thread = threading.Thread(target=seen.append, args=(1,))
    thread.start()
    thread.join()
    assert seen == [1]
def test_process(): assert subprocess.run(["true"], check=True).returncode == 0
def time_of(): return 3
def test_name(): assert time_of() == 3
"""


def test_tests_that_a_clock_or_chance_may_decide_judge_nothing() -> None:
    found = study(sound=SOUND, certain=CERTAIN, uncertain=UNCERTAIN)
    flaky = {node.partition("::")[2] for node in found.flaky}
    written = set(re.findall(r"def (test_\w+)", UNCERTAIN))
    assert flaky == written - {"test_one_case"} | {"test_one_case[2]"}
    assert names(found) == set(re.findall(r"def (test_\w+)", SOUND + CERTAIN))


THREADED = """
import threading
from wordless import clamp

def test_in_a_thread():
    thread = threading.Thread(target=clamp, args=(7, 1, 5))
    thread.start()
    thread.join()
"""


def test_what_threads_reach_may_be_reached_by_every_test() -> None:
    found = study(sound=SOUND, threaded=THREADED)
    assert ("wordless.py", 8) in found.reach.at_import
    assert ("wordless.py", 2) not in found.reach.at_import


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


LATE, BUGGY = b"# this one is late", PRODUCT.replace("a > b", "a < b").encode()


@pytest.mark.parametrize(
    ("late", "is_product_late", "told"),
    [
        ({1}, False, "failed"),  # what counts is the run alone
        ({1, 2}, False, "timeout"),
        ({1, 2}, True, "the machine"),
    ],
)
def test_a_run_that_is_late_is_repeated_alone(
    late: set[int], is_product_late: bool, told: str
) -> None:
    runs = itertools.count(1)
    put = {"wordless.py": BUGGY + LATE}
    tests = {"tests/test_wordless.py": SOUND}

    def is_late(files: list[bytes]) -> bool:
        return next(runs) in late if BUGGY + LATE in files else is_product_late and is_studied

    async def work(lab: PackageLab, study: PackageStudy) -> str:
        nonlocal is_studied
        is_studied = True
        try:
            run = await lab.run(files=tuple(study.tests), put=put)
        except SandboxError as e:
            return "the machine" if "tests of correct code do not end in time" in str(e) else str(e)
        return "timeout" if run.is_timed_out else "failed" if not run.all_passed else "passed"

    is_studied = False
    sandboxes = BusyBackend(backend("local"), is_late)
    assert in_lab("wordless", PRODUCT, tests, work, sandboxes) == told


def test_nothing_runs_beside_a_run_that_is_repeated() -> None:
    """Two runs at a time are late, whichever comes first; one alone is not."""
    running = 0
    late: list[bool] = []

    class Crowded(BusyBackend):
        async def run_tests(
            self, call: PreloadedCall, request: Request
        ) -> tuple[ExecResult, bytes]:
            nonlocal running
            running += 1
            late.append(running > 1)
            try:
                return await super().run_tests(call, request)
            finally:
                running -= 1

    async def work(lab: PackageLab, study: PackageStudy) -> list[bool]:
        files = tuple(study.tests)
        late.clear()
        runs = await asyncio.gather(*(lab.run(files=files) for _ in range(4)))
        assert any(late)
        return [run.all_passed for run in runs]

    sandboxes = Crowded(backend("local"), lambda files: late[-1])
    tests = {"tests/test_wordless.py": SOUND}
    assert in_lab("wordless", PRODUCT, tests, work, sandboxes) == [True] * 4
