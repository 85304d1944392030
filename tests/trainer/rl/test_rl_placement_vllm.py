"""A run on two real vLLM servers of its own: one sleeps while steps are taken, one is killed.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer/rl

Not here: what the servers are asked, call by call (`test_server_pool.py`); one server
(`test_rl_vllm.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rl_play import config_text
from vllm_servers import save, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_ROLLOUTS = 16
"""Of a step; as many are played ahead, and begin with them."""
SERVERS = """max_context_tokens = 400
uri = "vllm"
server_python = "{python}"
server_args = ["--enforce-eager"]
[[policy.servers]]
tags = ["rollout", "train"]
devices = "0"
[[policy.servers]]
tags = ["rollout"]
devices = "1"
"""
_PROGRAM = """
import sys
from rl_play import register_env
from katgym.cli.main import main
register_env()
sys.exit(main(sys.argv[1:]))
"""


class Run:
    """A run in a process, and what its files say."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def num_requests(self, server: int, route: str) -> int:
        """Return how often a route was answered well, by what the server has logged."""
        log = (self.folder / f"vllm-{server}.log").read_text()
        lines = [line for line in log.splitlines() if f'"POST {route}' in line]
        return sum(line.endswith('" 200 OK') for line in lines)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 1200
        while not is_so():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def kill(self, device: str) -> None:
        """Kill all processes of the server that sees a device."""
        killed = 0
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_text()
                is_ours = f"KATGYM_TEST_RUN={self.folder}".encode() in variables
                if is_ours and f"CUDA_VISIBLE_DEVICES={device}".encode() in variables and words:
                    os.kill(int(pid), signal.SIGKILL)
                    killed += 1
        assert killed > 1


@pytest.fixture
def run(tmp_path: Path, vllm_python: str) -> Iterator[Run]:
    """Begin a run that goes on until it is told to stop."""
    model = save(tiny_model(), tmp_path / "tiny")
    text = config_text(model, steps=9999, rollouts="max_staleness = 1", train="lora_rank = 4")
    text = text.replace("max_context_tokens = 400\n", SERVERS.format(python=vllm_python))
    (tmp_path / "rl.toml").write_text(text.replace("learning_rate = 1e-2", "learning_rate = 1e-4"))
    folder = tmp_path / "run"
    command = [sys.executable, "-c", _PROGRAM, "train", "rl", str(tmp_path / "rl.toml")]
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "KATGYM_TEST_RUN": str(folder)}
    process = subprocess.Popen(
        [*command, "--out", str(folder)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Run(folder, process)
    finally:
        process.kill()
        process.communicate()


def test_one_server_sleeps_and_wakes_and_the_other_is_killed_and_mended(run: Run) -> None:
    sampled = "/inference/v1/generate"
    run.until(lambda: len(run.metrics()) >= 2)
    num_probes = [run.num_requests(server, "/update_weight_version") for server in (0, 1)]
    assert all(run.num_requests(i, sampled) >= NUM_ROLLOUTS + num_probes[i] - 1 for i in (0, 1))

    num_steps, num_sampled = len(run.metrics()), run.num_requests(1, sampled)
    run.kill("1")
    run.until(lambda: len(run.metrics()) >= num_steps + 2)  # the other goes on
    run.until(lambda: run.num_requests(1, sampled) >= num_sampled + NUM_ROLLOUTS)

    run.process.send_signal(signal.SIGINT)
    _, err = run.process.communicate(timeout=600)
    assert run.process.returncode == 128 + signal.SIGINT, err
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    # A step's line tells of the weights that arrived since the line before: of none, at times,
    # where some wait for the trainer and others are on their way while it goes on.
    told = [line for line in lines if "sync/difference" in line]
    assert len(told) >= 2 and told[-1]["sync/num_restarts"] == 1
    assert all(0 <= line["sync/difference"] < 1e-4 for line in told)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert max(line["rollout/max_staleness"] for line in lines) <= 1
    # It sleeps on where the next step's groups are there already.
    assert any(line.get("time/asleep_s", 0.0) > 0 for line in lines)
    num_sleeps = [run.num_requests(0, f"/sleep?level=1&mode={mode}") for mode in ("abort", "keep")]
    assert 0 < sum(num_sleeps) <= len(lines)
    assert num_sleeps[0] > 0  # while the other is up its requests go there
    num_wakes = run.num_requests(0, "/wake_up?tags=weights")
    assert sum(num_sleeps) - num_wakes in (0, 1)  # 1: the run ended while it slept
    assert run.num_requests(1, "/sleep") == 0
