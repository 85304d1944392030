"""`katgym check` of envs that hang, raise, exit or cannot be made: a finding, in time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import broken_envs as envs
import pytest

import katgym
from katgym.certificate import subject as subject_module
from katgym.certificate.certify import CHECKS, check_env, run_checks
from katgym.certificate.subject import Subject

_SCRIPT = """
import sys
import broken_envs, katgym
from katgym.cli.main import main
katgym.register("broken/Env-v0", getattr(broken_envs, sys.argv[1]))
sys.exit(main(["check", "broken/Env-v0", "--tasks", "2"]))
"""


def check(name: str) -> subprocess.CompletedProcess[str]:
    """Run the command on one of the broken envs."""
    path = os.pathsep.join([str(Path(envs.__file__).parent), *sys.path])
    command = [sys.executable, "-c", _SCRIPT, name]
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call"), [("HangsInReset", "areset"), ("WaitsInStep", "astep")])
def test_an_env_that_hangs_fails_and_the_command_ends(name: str, call: str) -> None:
    found = check(name)
    assert found.returncode == 1
    text = " ".join(found.stdout.split())
    assert f"failed gymnasium the env hangs: {call} has not returned after" in text
    assert text.count("skipped") == len(CHECKS) - 1


@pytest.mark.slow
def test_an_env_that_cannot_be_made_fails() -> None:
    found = check("CannotBeMade")
    assert found.returncode == 1
    assert "the env cannot be made: RuntimeError: no licence" in " ".join(found.stdout.split())
    assert "Traceback" not in found.stderr


def test_what_an_env_raises_is_the_finding_of_its_checks() -> None:
    cases: list[tuple[katgym.Env, str]] = [
        (envs.RaisesInReset(), "OSError: no disk"),
        (envs.ExitsInStep(), "SystemExit: 3"),
    ]
    for env, detail in cases:
        report = check_env(env, num_tasks=2, checks=["oracle", "reset"])
        assert [check.detail for check in report.failures] == [detail, detail]


class Clock:
    """Stands in for `time` where calls are timed: goes on where an env says that it takes long."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


CLOCK = Clock()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(subject_module, "time", CLOCK)
    return CLOCK


class HangsInItsThirdReset(envs.Sums):
    resets = itertools.count()
    is_over = threading.Event()

    async def setup(self) -> None:
        # Time goes on: a call of the other thread may have taken as long as one step of it.
        while next(self.resets) >= 2 and not self.is_over.wait(0.01):
            CLOCK.now_s += 60


class WorksLong(envs.Sums):
    """Sound: its first tool call takes longer than other calls may, so does its first oracle."""

    calls = itertools.count()
    default_max_turns = 2

    @katgym.tool(timeout_s=60)
    def add(self) -> str:
        """Add the numbers."""
        self.work()
        return str(self.task.answer)

    def work(self) -> None:
        CLOCK.now_s += 1.4 if next(self.calls) < 2 else 0

    def oracle_action(self) -> str | katgym.Action:
        self.work()
        return super().oracle_action() if self.num_turns else katgym.assistant("", [("add", {})])


def subject(env: katgym.Env, *, num_tasks: int) -> Subject:
    """Return an env under test whose calls hang after a second rather than half a minute."""
    return Subject(
        name="", env=env, registered_id=None, num_tasks=num_tasks, budget_s=0.1, hang_s=1.0
    )


def test_calls_that_wait_for_their_turn_do_not_hang(clock: Clock) -> None:
    """Five that begin at once, of which each takes 0.3 s after the one before has ended."""
    found, looked = subject(envs.Sums(), num_tasks=5), []

    def take_turns(num_before: int) -> None:
        if num_before:
            found._timed("areset", take_turns)(num_before - 1)
        clock.now_s += 0.3
        looked.append(found.hanging_call())

    found._timed("areset", take_turns)(4)
    assert looked == [("", 0.0)] * 5


@pytest.mark.usefixtures("clock")
def test_a_call_that_hangs_in_one_of_several_threads_is_told() -> None:
    try:
        (found,) = run_checks(["threads"], subject(HangsInItsThirdReset(), num_tasks=2))
    finally:
        HangsInItsThirdReset.is_over.set()
    assert found.status == "failed"
    assert found.detail.startswith("the env hangs: areset has not returned after")


@pytest.mark.usefixtures("clock")
def test_a_step_may_take_its_tools_time_and_an_oracle_that_of_a_turn() -> None:
    (found,) = run_checks(["oracle"], subject(WorksLong(), num_tasks=1))
    assert found.status == "passed", found.detail
