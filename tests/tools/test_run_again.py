"""What failed runs once more: what passes alone is told, what fails twice is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # several runs of pytest each

SCRIPT = Path(__file__).resolve().parents[2] / "tools/run_again.py"
TESTS = """
import os
from pathlib import Path

import pytest


def once(name):
    mark = Path(__file__).with_name(name)
    is_first = not mark.exists()
    mark.touch()
    return is_first


@pytest.mark.parametrize("number", range(int(os.environ.get("BUSY", "0"))))
def test_busy(number):
    assert not once(f"busy-{number}"), "the machine was busy"


@pytest.mark.slow
def test_broken():
    assert "BROKEN" not in os.environ


def test_sound():
    pass
"""


@pytest.fixture
def run_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs pytest on `TESTS`, then the script on what it reported."""
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: takes long\n")

    def run(**environment: str) -> tuple[int, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        pytest_ = [sys.executable, "-m", "pytest", "-q", "--report-log=log.jsonl"]
        subprocess.run(pytest_, cwd=tmp_path, check=False, capture_output=True)
        again = [sys.executable, str(SCRIPT), "log.jsonl"]
        done = subprocess.run(again, cwd=tmp_path, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


def test_what_passes_alone_is_told_with_its_first_failure(run_both) -> None:
    code, text = run_both(BUSY="2")
    assert code == 0
    told = text.partition("== LOAD-SENSITIVE: 2 ")[2]
    assert "-- test_them.py::test_busy[0]" in told and "-- test_them.py::test_busy[1]" in told
    assert told.count("the machine was busy") == 2
    assert "FAILED TWICE" not in text


def test_what_fails_twice_is_a_failure_whatever_passes(run_both) -> None:
    code, text = run_both(BUSY="1", BROKEN="1")
    assert code == 1
    assert "-- test_them.py::test_busy[0]" in text
    assert "== FAILED TWICE: test_them.py::test_broken\n" in text


def test_more_than_five_are_a_failure_and_are_not_run_again(run_both) -> None:
    code, text = run_both(BUSY="6")
    assert code == 1
    assert "6 failed; above 5" in text and "LOAD-SENSITIVE" not in text


def test_a_run_without_failures_of_tests_stays_failed(run_both) -> None:
    assert run_both()[0] == 1  # who runs the script has seen pytest fail


def test_a_file_that_cannot_be_collected_fails_twice(run_both, tmp_path: Path) -> None:
    (tmp_path / "test_bad.py").write_text("import nothing_like_it\n")
    code, text = run_both()
    assert code == 1
    assert "== FAILED TWICE: test_bad.py\n" in text
