"""The time limit counts what a test needs, not what its machine does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import time_limit
from time_limit import Clocks

SHARED = Path(time_limit.__file__).parent
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
TESTS = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < {}: pass"

def burn():
    code = BURN.format(time.process_time() + seconds())
    exec(code)

def seconds():
    import time_limit
    return 2 * time_limit.LIMIT_S * time_limit.slowness()

def test_computes():
    burn()

def test_lets_a_child_compute():
    subprocess.run([sys.executable, "-c", BURN.format(seconds())], check=True)

def test_is_quick():
    pass

@pytest.mark.slow
def test_says_so():
    burn()

def test_fails_by_itself():
    assert 1 == 2
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest on a folder with the plugins of `tests/shared`; return what it prints."""
    # On CI pytest's summary repeats whole messages.
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**inherited, "PYTHONPATH": os.pathsep.join([str(SHARED), *sys.path]), **QUICK},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_test_without_a_mark_that_computes_too_long_fails(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: x\n")
    (tmp_path / "conftest.py").write_text(
        "import time_limit\n\npytest_plugins = ['time_limit']\ntime_limit.LIMIT_S = 0.2\n"
    )
    (tmp_path / "test_a.py").write_text(TESTS)
    told = run_pytest(tmp_path)
    outcomes = dict(
        line.split()[:2] for line in told.splitlines() if line.startswith("test_a.py::")
    )
    assert {name.removeprefix("test_a.py::"): outcome for name, outcome in outcomes.items()} == {
        "test_computes": "FAILED",
        "test_lets_a_child_compute": "FAILED",
        "test_is_quick": "PASSED",
        "test_says_so": "PASSED",
        "test_fails_by_itself": "FAILED",
    }
    assert told.count("make it smaller, or mark it with @pytest.mark.slow") == 2
    assert "assert 1 == 2" in told


def counted_s(*, wall_s: float, cpu_s: float, idle_s: float) -> float:
    began = Clocks(wall_s=100.0, cpu_s=20.0, idle_s=300.0)
    return began.counted_s(Clocks(wall_s=100.0 + wall_s, cpu_s=20.0 + cpu_s, idle_s=300.0 + idle_s))


def test_a_busy_or_slow_machine_is_not_counted(monkeypatch):
    monkeypatch.setattr(time_limit, "slowness", lambda: 1.0)
    assert counted_s(wall_s=60, cpu_s=3, idle_s=0) == 3  # others had the processors
    assert counted_s(wall_s=6, cpu_s=0.1, idle_s=6) == 6  # it slept on an idle machine
    assert counted_s(wall_s=4, cpu_s=8, idle_s=0) == 4  # two threads at once
    monkeypatch.setattr(time_limit, "slowness", lambda: 2.0)
    assert counted_s(wall_s=8, cpu_s=8, idle_s=0) == 4


def test_the_clocks_go_forward():
    began = Clocks.read()
    sum(range(10**6))
    later = Clocks.read()
    assert later.wall_s > began.wall_s and later.cpu_s >= began.cpu_s
    assert later.idle_s >= began.idle_s
    assert time_limit.slowness() >= 1
