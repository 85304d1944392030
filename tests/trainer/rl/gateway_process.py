"""A gateway in a process of its own, as `katgym gateway` starts it, for a run to train on.

Not here: gateways in a thread (`tests/katgym/gateway/served_gateway.py`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

KEY = "owner-key"
ENVIRONMENT = {"KATGYM_GATEWAY_KEY": KEY, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
_DEADLINE_S = 300.0


@contextlib.contextmanager
def gateway_of(upstream: str, store: Path, *options: str) -> Iterator[str]:
    """Start a gateway and yield its URL."""
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream]
    command += ["--store", str(store), "--port", "0", *options]
    with started(command) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("gateway on "), line
        yield line.split()[2].rstrip(",")


@contextlib.contextmanager
def started(command: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program as the gateway's owner until the block ends."""
    process = subprocess.Popen(
        command, env={**os.environ, **ENVIRONMENT, **more}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
