"""A Qwen3 of transformers, small enough to be trained in a test, and rows for it."""

from __future__ import annotations

import random
from typing import Any

import torch
from random_qwen import random_qwen

from katgym_trainer import Row

VOCABULARY = 60
FAST = {"learning_rate": 0.01, "max_tokens": 64}
"""Settings of a trainer that learns a few rows by heart within 40 steps."""


def tiny_qwen(seed: int = 0, **more: Any) -> Any:
    """Return a model of two layers and random float32 weights."""
    return random_qwen(
        seed=seed,
        **{
            "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
            "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, "tie_word_embeddings": True, **more,
        },
    )  # fmt: skip


def group_of_rows(
    advantages: list[float], *, name: str = "group", seed: int = 0, policy_logprob: float = -4.0
) -> list[Row]:
    """Return rows of one prompt of 5 tokens and answers of 3 to 6, which are trained."""
    rng = random.Random(seed)
    prompt = [rng.randrange(3, VOCABULARY) for _ in range(5)]
    rows = []
    for number, advantage in enumerate(advantages):
        answer = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(3, 6))]
        mask = [0] * len(prompt) + [1] * len(answer)
        logprobs = [policy_logprob] * len(mask)
        rollout = f"{name}-{number}"
        rows.append(Row(prompt + answer, mask, logprobs, advantage, group=name, rollout=rollout))
    return rows


def supervised() -> list[Row]:
    """Return four rows of five tokens, the last three of which are trained."""
    return [Row([3, 10 + i, 20 + i, 30 + i, 40 + i], [0, 0, 1, 1, 1]) for i in range(4)]


def weights(model: Any) -> dict[str, torch.Tensor]:
    """Return a copy of all parameters, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether all tensors of both are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
