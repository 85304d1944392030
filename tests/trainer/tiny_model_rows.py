"""Rows for `TinyModel`, and what it makes of each by itself.

Not here: losses of a row (`row_by_row.py`).
"""

from __future__ import annotations

import random

import torch
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import Row


def sample_rows(model: TinyModel, kind: str, seed: int = 0) -> list[Row]:
    """Return rows that share prefixes in one way, with log-probs somewhat off the model's."""
    rng = random.Random(seed)

    def some(num: int) -> list[int]:
        return [rng.randrange(13) for _ in range(num)]

    prompt = some(7)
    if kind == "group":
        sequences = [prompt + some(rng.randint(1, 9)) for _ in range(5)]
    elif kind == "steps":  # every row begins the next but for its thoughts
        sequences, context = [], prompt
        for _ in range(4):
            action = some(3)
            sequences.append(context + some(2) + action)
            context = context + action + some(3)
    elif kind == "duplicates and prefixes":
        whole = prompt + some(6)
        sequences = [whole, whole, whole[:9], whole[:11], whole[:2]]
    else:  # nothing shared
        sequences = [[i, *some(6 + i)] for i in range(4)]
    rows = []
    for i, tokens in enumerate(sequences):
        mask = [t > 0 and rng.random() < 0.7 for t in range(len(tokens))]
        mask[-1] = True
        with torch.no_grad():
            exact = row_logprobs(model, Row(tokens, mask)).tolist()

        def near(exact: list[float] = exact) -> list[float]:
            return [0.0, *(min(0.0, x + rng.gauss(0, 0.3)) for x in exact)]

        advantages = [rng.gauss(0, 1) for _ in tokens] if i % 2 else rng.gauss(0, 1)
        rollout = "one" if kind == "steps" and i < 3 else None
        row = Row(tokens, mask, near(), advantages, weight=rng.choice([1, 2]), rollout=rollout)
        rows.append(row.replace(proximal_logprobs=near(), ref_logprobs=near()))
    return rows


def row_outputs(model: TinyModel, row: Row, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log-prob and entropy of every token but the first."""
    ids = torch.from_numpy(row.token_ids.copy())
    hidden = model.run(ids, torch.arange(len(ids)), None)
    logp = (hidden[:-1] @ model.embedding.T / temperature).log_softmax(-1)
    return logp.gather(1, ids[1:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def row_logprobs(model: TinyModel, row: Row) -> Tensor:
    return row_outputs(model, row)[0]


def gradients(model: TinyModel) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def check_equal(found: list[Tensor], wanted: list[Tensor], allowed: float) -> None:
    assert len(found) == len(wanted) > 0
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).norm() / y.norm()) <= allowed
