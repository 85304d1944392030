"""Fixtures: settings of a server that is `fake_vllm.py`, and which of its processes are left.

Not here: real servers (`test_real_server.py`).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import HANG_S, wait_until

from katgym.vllm_server import VllmServerConfig


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """What stands for the Python of an environment with vLLM."""
    script = tmp_path / "python"
    fake = Path(__file__).with_name("fake_vllm.py")
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def make_config(fake_python: Path, tmp_path: Path) -> Callable[..., VllmServerConfig]:
    """Settings of a fake server that does what its model is called."""

    def make(model: str, **options: object) -> VllmServerConfig:
        settings = {"start_timeout_s": 300.0, "stop_timeout_s": 1.0, "device": "cpu"}
        settings |= {"log_file": tmp_path / "server.log", **options}
        return VllmServerConfig(model=model, python=str(fake_python), **settings)  # type: ignore[arg-type]  # of any field

    return make


def pids(log: Path, *, num_started: int = 1) -> list[int]:
    """Return the processes of a fake server: guard, server, the server's child.

    num_started: which of the servers that wrote to the log, one after the other.
    """

    def found() -> list[str]:
        told = log.read_text() if log.exists() else ""
        return re.findall(r"^pids: (.+)\n", told, re.MULTILINE)[num_started - 1 : num_started]

    (line,) = wait_until(found, f"pids in {log}")
    return [int(pid) for pid in line.split()]


def left(processes: list[int], *, within_s: float = HANG_S) -> list[int]:
    """Return which processes still run after a time; waits no longer than it must."""
    deadline = time.monotonic() + within_s
    while True:
        alive = [pid for pid in processes if _is_running(pid)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def pids_of() -> Callable[..., list[int]]:
    return pids


@pytest.fixture
def left_of() -> Callable[..., list[int]]:
    return left
