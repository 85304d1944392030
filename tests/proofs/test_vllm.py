"""A real vLLM server answers, takes new weights, and stands what a run asks of it at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import long_prompts
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from random_qwen import random_qwen

from katgym.cli.main import main
from katgym.evaluation.store import read_rollouts
from katgym.vllm_server import VllmServer, VllmServerConfig
from katgym_trainer.weight_sync.reload_sync import ReloadSync

pytestmark = pytest.mark.proof

SHAPE = {
    "vocab_size": 288,
    "max_position_embeddings": long_prompts.MAX_TOKENS,
    "initializer_range": 0.3,
}


def test_a_server_plays_an_env_and_takes_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # server and trainer share the machine
    model = random_qwen(**SHAPE).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    config = VllmServerConfig(
        model=str(folder),
        served_name="tiny",
        python=os.environ["KATGYM_VLLM_PYTHON"],  # .ci/vllm_environment prints it
        dtype="float32",
        max_model_len=long_prompts.MAX_TOKENS,
        has_rl_routes=True,
        log_file=tmp_path / "server.log",
        start_timeout_s=600.0,
    )
    with VllmServer(config) as server:
        before = play(server, folder, tmp_path / "before")
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        # The probe compares the server's log-probabilities with the new model's.
        difference, version = asyncio.run(send(model, server, tmp_path / "weights"))
        after = play(server, folder, tmp_path / "after")
        # Groups of 16 with seeds, whose prompts together are longer than any batch.
        loads = [play_load(server, folder, tmp_path / f"load-{number}") for number in range(2)]
    assert (difference <= 1e-4, version) == (True, "1")
    print(before, after)
    assert [v for v, _ in before + after] == [0, 0, 1, 1]
    assert [tokens for _, tokens in before] != [tokens for _, tokens in after]
    assert loads[0] == loads[1]
    assert len(loads[0]) == 64 == len({tokens for _, tokens in loads[0]})


def play(server: VllmServer, folder: Path, run: Path) -> list[tuple[int | None, list[int]]]:
    """Play two tasks, as a user would; return the first turns' policy versions and tokens."""
    policy = f"vllm:{server.url}#tiny?tokenizer={folder}"
    options = ["--policy", policy, "--tasks", "2", "--max-tokens", "8", "--out", str(run)]
    assert main(["eval", "katgym/Arithmetic-v1?level=1", *options]) == 0
    rollouts = sorted(read_rollouts(run), key=lambda rollout: rollout.task_id)
    records = [rollout.turns[0].tokens for rollout in rollouts]
    return [(record.policy_version, record.completion_ids) for record in records if record]


def play_load(server: VllmServer, folder: Path, run: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Play 64 rollouts at once; return the task and tokens of each."""
    policy = f"vllm:{server.url}#tiny?tokenizer={folder}"
    options = ["--tasks", "4", "--group-size", "16", "--concurrency", "64", "--max-tokens", "16"]
    env = f"{long_prompts.__file__}:{long_prompts.LongPromptEnv.__name__}"
    assert main(["eval", env, "--policy", policy, *options, "--out", str(run)]) == 0
    rollouts = read_rollouts(run)
    assert all(len(rollout.turns[0].tokens.prompt_ids) > 2048 for rollout in rollouts)
    return sorted((r.task_id, tuple(r.turns[0].tokens.completion_ids)) for r in rollouts)


async def send(model: Any, server: VllmServer, folder: Path) -> tuple[float, str | None]:
    """Send all weights as version 1; return the probe's difference and the server's version."""
    sync = ReloadSync([server.url], "tiny", folder=folder)
    try:
        times = await sync.sync_weights(model, 1)
        return times.difference, await sync.controls[0].weight_version()
    finally:
        await sync.aclose()
