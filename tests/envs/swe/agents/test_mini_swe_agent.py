"""mini-swe-agent works in our sandbox as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy
import pytest

from katgym.sandbox.venvs import ensure_venv

SCRIPT = Path(__file__).with_name("play_mini_swe_agent.py")
ROOT = Path(__file__).parents[4]


@pytest.mark.slow
def test_the_agent_runs_unchanged_and_what_it_did_is_the_diff() -> None:
    python = ensure_venv(("mini-swe-agent==2.4.6",))
    path = ":".join([str(ROOT), str(ROOT / "envs"), str(Path(numpy.__file__).parents[1])])
    done = subprocess.run([python, SCRIPT, path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["prompt"]["content"] == "You repair code. You are in /workspace."
    assert told["ended"]["exit_status"] == "Submitted"
    assert told["ended"]["submission"] == "def shout(text):\n    return text.upper()\n"
    assert told["changes"] == {"shout.py": "def shout(text):\n    return text.upper()\n"}
    task, first, _, timeout, inside = told["seen"]
    assert task == "shout() whispers"
    assert "return text.lower()" in first and "\na\n" in first
    assert "-1" in timeout and "stopped after " in timeout
    assert "/workspace" in inside and "1000" in inside and "Permission denied" in inside
