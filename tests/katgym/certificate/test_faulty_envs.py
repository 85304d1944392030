"""`katgym check` of envs that hang, raise, exit or cannot be made: a finding, in time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import broken_envs as envs
import pytest

from katgym.certificate.certify import CHECKS, check_env

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
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150)


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


@pytest.mark.parametrize(
    ("env", "detail"),
    [(envs.RaisesInReset(), "OSError: no disk"), (envs.ExitsInStep(), "SystemExit: 3")],
)
def test_what_an_env_raises_is_the_finding_of_its_checks(env: envs.Sums, detail: str) -> None:
    report = check_env(env, num_tasks=2, checks=["oracle", "reset"])
    assert [check.detail for check in report.failures] == [detail, detail]
