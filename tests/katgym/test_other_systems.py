"""What needs no sandbox works where Unix's modules are missing; the rest says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[1] / "shared"
HANDLERS = Path(__file__).parents[1] / "envs" / "math"
SITE = """
import warnings, barred_modules
barred_modules.bar()
# Opening a text file without naming its encoding, which is another one there.
warnings.filterwarnings("error", category=EncodingWarning, module="katgym")
"""


@pytest.fixture
def windows(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that lack what only Unix has, those that they start included."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return {
        **os.environ,
        "KATGYM_PLUGINS": "katgym.math,katgym.games,katgym.swe,katgym.train",
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (site, SHARED, HANDLERS))),
    }


def _run(
    *arguments: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_all_without_a_sandbox_works_without_unix(tmp_path: Path, windows: dict[str, str]) -> None:
    envs = ("katgym/MathProblems-v1", "katgym/Chess-v1", "katgym/TreasureHunt-v1")
    commands = (
        ("envs",),
        ("plugins",),
        ("doctor",),
        ("eval", "katgym/Arithmetic-v1", "--policy", "oracle", "--tasks", "2", "--out", "a"),
        ("eval", "katgym/Arithmetic-v1", "--policy", "noop", "--tasks", "2", "--out", "b"),
        ("eval", *envs, "--policy", "oracle", "--tasks", "2", "--out", "c"),
        ("eval", "katgym/OpenSpiel-v0", "--policy", "random", "--tasks", "2", "--out", "d"),
        ("compare", "a", "b"),
        ("leaderboard", "a", "b", "--out", "board"),
        ("view", "a"),
        ("view", "a", "--html"),
        ("verify", "a"),
        ("sandbox", "list"),
    )
    shown = {}
    for command in commands:
        done = _run("-m", "katgym", *command, folder=tmp_path, environment=windows)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (command, done.stderr)
        shown[command[0]] = done.stdout
    assert "pip install" not in shown["envs"]
    assert "refused" not in shown["plugins"]
    assert "needs Linux" in shown["sandbox"]
    assert (tmp_path / "a" / "view" / "index.html").is_file()
    assert (tmp_path / "board" / "leaderboard.html").is_file()


def test_the_local_sandbox_says_that_it_needs_linux(
    tmp_path: Path, windows: dict[str, str]
) -> None:
    done = _run("-m", "katgym", "sandbox", "check", "local", folder=tmp_path, environment=windows)
    assert done.returncode == 1
    assert done.stderr.startswith("error: sandbox backend 'local' does not work on this system")
    assert "sandboxd:URL" in done.stderr


@pytest.mark.slow
def test_a_verifier_without_limits_answers_and_is_killed_in_time(
    tmp_path: Path, windows: dict[str, str]
) -> None:
    code = """
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool
for timeout_s in (1, 10, 100):  # a machine may be too busy for the jobs that end to do so sooner
    pool = WorkerPool(WorkerConfig(handler="verifier_handlers:serve", timeout_s=timeout_s))
    told = [pool.run(job)["status"] for job in ({}, {"sleep_s": 3600}, {"allocate_mib": 1})]
    pool.close()
    if told.count("timeout") == 1:
        break
print(*told)
"""
    done = _run("-c", code, folder=tmp_path, environment=windows)
    assert (done.stdout, done.returncode) == ("done timeout done\n", 0), done.stderr
    assert "no limit on address space" in done.stderr
