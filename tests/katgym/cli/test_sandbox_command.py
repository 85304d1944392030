"""`katgym sandbox list|check|gc`: output, JSON, exit codes, and what a killed katgym leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from katgym.cli.main import main
from katgym.sandbox.conformance import CHECKS
from katgym.sandbox.local import cgroups

_DYING = """
import asyncio, os, signal, sys
from katgym.sandbox import SandboxSpec, backend

async def main():
    local = backend("local")
    boxes = [await local.create(SandboxSpec()) for _ in range(3)]
    command = f"setsid sleep {sys.argv[1]} & touch /tmp/up; sleep {sys.argv[1]}"
    running = [asyncio.create_task(box.exec(command)) for box in boxes]
    for box in boxes:
        while (await box.exec("test -e /tmp/up")).exit_code:
            await asyncio.sleep(0.02)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_list_says_what_is_enforced_how_of_every_backend_but_the_remote_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sandbox", "list", "local"]) == 0
    told = capsys.readouterr().out
    assert "local: namespaces+overlay" in told and "untrusted code may run" in told
    assert "tmpfs size" in told and "fork" in told
    assert main(["sandbox", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"docker", "local"}
    assert found["local"]["is_safe"] is True
    assert found["local"]["probes"]["seccomp"] == "yes"


def test_a_backend_that_was_named_and_cannot_work_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATGYM_SANDBOXD_TOKEN", "0123456789abcdef")
    for action in ("list", "gc", "check"):
        assert main(["sandbox", action, "sandboxd:http://127.0.0.1:9"]) == 1
        assert "cannot be reached" in capsys.readouterr().err


def test_an_unknown_backend_or_check_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", "locl"]) == 2
    assert "Did you mean 'local'?" in capsys.readouterr().err
    assert main(["sandbox", "check", "local", "--only", "limt"]) == 2
    assert "Did you mean 'limit'?" in capsys.readouterr().err
    assert main(["sandbox", "check", "local", "--image", "x"]) == 2
    assert "runs no images" in capsys.readouterr().err


def test_check_prints_or_returns_a_result_for_each_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = ["--only", "command.exit_codes", "--only", "call.needs_preload"]
    assert main(["sandbox", "check", *only]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "passed   command.exit_codes  Exit codes come back as they are."
    assert lines[1].startswith("passed   call.needs_preload")
    assert lines[2].endswith("2 passed, 0 failed, 0 skipped")
    assert main(["sandbox", "check", "--only", "stream.stdin_is_data", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True and found["enforcement"]["backend"] == "local"
    assert [(r["name"], r["passed"]) for r in found["results"]] == [("stream.stdin_is_data", True)]


@pytest.mark.slow
def test_check_runs_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", "local"]) == 0
    assert f"{len(CHECKS)} passed, 0 failed, 0 skipped" in capsys.readouterr().out


@pytest.mark.slow
def test_gc_leaves_nothing_of_a_katgym_that_was_killed() -> None:
    mark = f"6{os.getpid()}"
    done = subprocess.run([sys.executable, "-c", _DYING, mark], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not _is_sleeping(mark), "the commands to end with katgym")
    command = [sys.executable, "-m", "katgym.cli.main", "sandbox", "gc", "local", "--json"]
    # Another process may sweep up at any time, so how many it were is not asked.
    assert json.loads(subprocess.check_output(command))["local"] >= 0
    maker, _ = cgroups.find()
    parents = [] if maker is None else maker.parents.values()
    assert [
        path for parent in parents for path in parent.glob(f"katgym-{int(done.stdout)}-*")
    ] == []


def _is_sleeping(mark: str) -> bool:
    wanted = b"\0".join([b"sleep", mark.encode(), b""])
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False
