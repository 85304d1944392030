"""A run whose policy is a real vLLM server: its own, which is killed, and one that is there.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer/rl

Not here: runs in one process (`test_rl_run.py`), the ways of weights (`test_weight_sync*.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from rl_play import config_text, register_env
from vllm_servers import save, server_of, tiny_model

from katgym.cli.main import main

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

_PROGRAM = """
import sys
from rl_play import register_env
from katgym.cli.main import main
register_env()
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model(), tmp_path_factory.mktemp("model") / "tiny")


def text_of(model: Path, policy: str, **told: Any) -> str:
    text = config_text(model, **told)
    return text.replace("max_context_tokens = 400", f"max_context_tokens = 400\n{policy}")


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def children(pid: int) -> list[int]:
    """Return the processes below one, whichever of its threads started them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return found + [below for child in found for below in children(child)]


@pytest.mark.parametrize("train", ["", "lora_rank = 4"])
def test_a_server_that_is_there_gets_the_weights_after_every_step(
    train: str, model: Path, tmp_path: Path, vllm_python: str
) -> None:
    register_env()
    options: dict[str, Any] = {"has_lora": True, "max_lora_rank": 16}
    with server_of(model, tmp_path / "log", vllm_python, **options) as server:
        name = "ours" if train else "tiny"
        uri = f'uri = "vllm:{server.url}#{name}"'
        config = tmp_path / "rl.toml"
        config.write_text(text_of(model, uri, steps=4, train=train))
        assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 0
    lines = metrics(tmp_path / "run")
    assert len(lines) == 4
    assert all(0 <= line["sync/difference"] < 1e-4 for line in lines)
    assert {line["rollout/max_staleness"] for line in lines} == {0}
    assert all(line["train/policy_kl"] < 1e-4 for line in lines)  # sampled from what is trained
    assert all(line["rollout/num_invalid"] == 0 for line in lines)


def test_a_server_that_dies_is_started_again_with_the_weights_it_had(
    model: Path, tmp_path: Path, vllm_python: str
) -> None:
    config = tmp_path / "rl.toml"
    policy = f'uri = "vllm"\nserver_python = "{vllm_python}"'
    text = text_of(model, policy, steps=10, rollouts="max_staleness = 1")
    config.write_text(text.replace("learning_rate = 1e-2", "learning_rate = 1e-4"))
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "train", "rl", str(config), "--out", str(run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 400
        while len(metrics(run)) < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        servers = children(process.pid)
        assert len(servers) > 1
        url = (run / "train.log").read_text().split("vLLM serves 'trained' at ")[1].split()[0]
        for route in ("/pause", "/sleep", "/collective_rpc", "/v1/completions"):
            assert httpx.post(f"{url}{route}", json={}, timeout=300).status_code == 401
        assert httpx.get(f"{url}/health", timeout=300).status_code == 200
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[-1]["sync/num_restarts"] == 1
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert all(line["sync/difference"] < 1e-4 for line in lines)
    assert max(line["rollout/max_staleness"] for line in lines) <= 1
    assert "vLLM ended with exit code" in (run / "train.log").read_text()


def test_a_server_that_is_not_there_is_told_with_what_to_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    config = tmp_path / "rl.toml"
    config.write_text(text_of(model, 'uri = "vllm:http://127.0.0.1:9#tiny"'))
    assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "http://127.0.0.1:9" in told and "katgym vllm serve" in told
