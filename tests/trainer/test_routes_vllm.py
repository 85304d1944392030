"""Experts that a real vLLM tells, against those that the trainer's routers choose.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer/test_routes_vllm.py

vLLM tells them in its second model runner, which prepares its inputs with Triton. On a CPU build
that runs in Triton's interpreter, if it is told of a CPU driver: by a `sitecustomize` here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from byte_tokenizer import byte_tokenizer
from made_rollouts import rollout_of, turn
from vllm_servers import SHAPE, server_of

from katgym import RolloutGroup, TokenRecord, user
from katgym.policies.base import EpisodeContext
from katgym.policies.endpoints.vllm_client import from_uri
from katgym_trainer import forward_backward, group_rows, loss, pack

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

_SITE = """
import triton.backends


class Driver:
    @staticmethod
    def is_active():
        return True


class Backend:
    compiler, driver = None, Driver


triton.backends.backends["cpu"] = Backend()
"""
_PYTHON = """#!/bin/sh
export PYTHONPATH={site} TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1
exec {python} "$@"
"""


def tiny_mixture() -> Any:
    """Return a model of three layers, the second without experts."""
    torch.manual_seed(0)
    more = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen3MoeConfig(
        **{**SHAPE, **more}, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2,
        mlp_only_layers=[1],
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, vllm_python: str) -> Iterator[str]:
    """URL of a server of the tiny mixture that tells its experts."""
    folder = tmp_path_factory.mktemp("mixture")
    tiny_mixture().save_pretrained(folder / "tiny")
    byte_tokenizer().save_pretrained(folder / "tiny")
    python = folder / "python"
    (folder / "sitecustomize.py").write_text(_SITE)
    python.write_text(_PYTHON.format(site=folder, python=vllm_python))
    python.chmod(0o755)
    arguments = ("--enable-return-routed-experts", "--enforce-eager")
    with server_of(folder / "tiny", folder / "log", str(python), extra_args=arguments) as server:
        yield f"vllm:{server.url}#tiny"


def play(url: str, seed: int) -> list[TokenRecord]:
    """Play two turns and return their tokens."""

    async def run() -> list[TokenRecord]:
        policy = from_uri(url.removeprefix("vllm:"))
        session = policy.start(EpisodeContext(env=None, seed=seed))  # type: ignore[arg-type]
        messages, found = [user("hi")], []
        try:
            for number in range(2):
                completion = await session.complete(messages, max_tokens=6)
                assert completion.tokens is not None
                found.append(completion.tokens)
                messages += [completion.message, user(f"more {number}")]
        finally:
            await session.aclose()
            await policy.aclose()
        return found

    return asyncio.run(run())


def test_a_server_tells_the_experts_that_the_trainer_would_take(url: str) -> None:
    rollouts = [
        rollout_of(*map(turn, play(url, seed)), reward=float(seed), episode_id=str(seed))
        for seed in range(2)
    ]
    rows = group_rows([RolloutGroup(rollouts=rollouts)], "grpo")
    for row in rows:
        assert row.routes is not None
        # Every token of every turn, but for the last one and those that a branch has of its own.
        assert row.routes.is_told_T[:-1].all() and not row.routes.is_told_T[-1]
        assert row.routes.experts_TLK.shape[1:] == (3, 2)
        assert row.routes.experts_TLK.dtype == np.uint8
        assert not row.routes.experts_TLK[:, 1].any()
    model = tiny_mixture()
    forests = pack(rows, max_tokens=4096)
    metrics = forward_backward(model, forests, loss("grpo"))
    assert metrics["route_difference"] <= 2e-3
    assert metrics["policy_kl"] < 1e-6 and math.isclose(metrics["ratio"], 1, abs_tol=1e-3)
    # A trainer whose routers are a little off still runs what the sampler ran.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.02)
    model.zero_grad()
    replayed = forward_backward(model, forests, loss("grpo"))
    own = forward_backward(model, [f.without_routes() for f in forests], loss("grpo"))
    assert replayed["route_difference"] > 0.01
    assert replayed["policy_kl"] < own["policy_kl"]
