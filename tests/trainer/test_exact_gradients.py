"""Loss, log-probs and gradients on packed forests are those of every row run by itself."""

from __future__ import annotations

import random

import pytest
import torch
from row_by_row import total_loss
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import LOSSES, Row, forward_backward, loss, pack, trainer_logprobs

OPTIONS = {"dr_grpo": {"max_completion_tokens": 32}}


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
        logprobs = [0.0, *(min(0.0, x + rng.gauss(0, 0.3)) for x in exact)]
        advantages = [rng.gauss(0, 1) for _ in tokens] if i % 2 else rng.gauss(0, 1)
        rollout = "one" if kind == "steps" and i < 3 else None
        rows.append(
            Row(tokens, mask, logprobs, advantages, weight=rng.choice([1, 2]), rollout=rollout)
        )
    return rows


def row_logprobs(model: TinyModel, row: Row) -> Tensor:
    ids = torch.from_numpy(row.token_ids.copy())
    hidden = model.run(ids, torch.arange(len(ids)), None)
    logits = hidden[:-1] @ model.embedding.T
    return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]


def gradients(model: TinyModel) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def check_equal(found: list[Tensor], wanted: list[Tensor], allowed: float) -> None:
    assert len(found) == len(wanted) > 0
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).norm() / y.norm()) <= allowed


KINDS = ["group", "steps", "duplicates and prefixes", "nothing shared"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_are_those_of_the_rows(name: str, kind: str) -> None:
    model = TinyModel()
    rows = sample_rows(model, kind)
    wanted = total_loss(name, rows, lambda row: row_logprobs(model, row))
    wanted.backward()
    oracle = gradients(model)
    longest = max(map(len, rows))
    for budget in (10_000, longest + 3):
        forests = pack(rows, max_tokens=budget)
        metrics = forward_backward(model, forests, loss(name, **OPTIONS.get(name, {})))
        assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=1e-10, abs=1e-12)
        check_equal(gradients(model), oracle, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_the_rows(kind: str) -> None:
    model = TinyModel()
    rows = sample_rows(model, kind)
    found = trainer_logprobs(model, pack(rows, max_tokens=31))
    assert sorted(found) == list(range(len(rows)))
    for place, row in enumerate(rows):
        exact = row_logprobs(model, row)[torch.tensor(row.loss_mask[1:].tolist())]
        assert torch.allclose(found[place], exact.detach(), rtol=0, atol=1e-12)


def test_order_of_rows_and_budget_change_nothing() -> None:
    model = TinyModel()
    rows = sample_rows(model, "steps") + sample_rows(model, "group", seed=1)
    forward_backward(model, pack(rows, max_tokens=10_000), loss("grpo"))
    once = gradients(model)
    for seed in range(3):
        shuffled = random.Random(seed).sample(rows, len(rows))
        forward_backward(model, pack(shuffled, max_tokens=31 + 9 * seed), loss("grpo"))
        check_equal(gradients(model), once, 1e-10)


def test_on_policy_the_ratio_is_one_and_nothing_is_clipped() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")
    own = trainer_logprobs(model, pack(rows, max_tokens=20))
    fresh = []
    for place, row in enumerate(rows):
        logprobs = torch.zeros(len(row), dtype=torch.float64)
        logprobs[1:][torch.tensor(row.loss_mask[1:].tolist())] = own[place]
        fresh.append(Row(row.token_ids, row.loss_mask, logprobs.tolist(), row.advantages))
    metrics = forward_backward(model, pack(fresh, max_tokens=50), loss("grpo"))
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-12)
    assert metrics["clip_fraction"] == 0 and metrics["policy_kl"] == pytest.approx(0, abs=1e-12)
    assert metrics["num_tree"] < metrics["num_flat"] and 0 < metrics["por"] < 1


def test_gradients_add_up_and_a_forest_without_trained_tokens_adds_nothing() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")
    forests = pack(rows, max_tokens=10_000)
    forward_backward(model, forests, loss("sft"))
    once = gradients(model)
    (empty,) = pack([Row([1, 2, 3], [0, 0, 0])], max_tokens=5)
    forward_backward(model, forests, loss("sft"))
    forward_backward(model, [*forests, empty], loss("sft"))
    check_equal(gradients(model), [2 * g for g in once], 1e-12)


def test_temperature_divides_the_logits() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")
    metrics = forward_backward(model, pack(rows, max_tokens=99), loss("sft"), temperature=0.5)
    model.zero_grad()

    def logprobs(row: Row) -> Tensor:
        ids = torch.from_numpy(row.token_ids.copy())
        logits = model.run(ids, torch.arange(len(ids)), None)[:-1] @ model.embedding.T / 0.5
        return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]

    assert metrics["loss"] == pytest.approx(
        float(total_loss("sft", rows, logprobs).detach()), rel=1e-12
    )


def test_what_cannot_be_trained_is_refused_before_anything_is_computed() -> None:
    model = TinyModel()
    plain = Row([1, 2, 3], [0, 1, 1])
    (forest,) = pack([plain], max_tokens=5)
    with pytest.raises(ValueError, match=r"row 0 has no policy_logprobs, which loss 'grpo'"):
        forward_backward(model, [forest], loss("grpo"))
    with pytest.raises(ValueError, match="there are no forests"):
        forward_backward(model, [], loss("sft"))
    (beyond,) = pack([Row([1, 13], [0, 1])], max_tokens=5)
    with pytest.raises(ValueError, match="token id 13 is beyond the model's vocabulary of 13"):
        forward_backward(model, [forest, beyond], loss("sft"))
    for row in (Row([1, 2], [0, 0]), Row([1, 2], [0, 1], weight=0)):
        with pytest.raises(ValueError, match="no token of these forests is trained"):
            forward_backward(model, pack([row], max_tokens=5), loss("sft"))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grp", {}, r"unknown loss 'grp'\. Did you mean 'grpo'\?; allowed: sft, "),
        (
            "grpo",
            {"clip_hi": 1},
            r"no option 'clip_hi'\. Did you mean 'clip_high'\?; allowed: clip",
        ),
        ("sft", {"clip_high": 1}, "loss 'sft' has no option 'clip_high'; allowed: none"),
        ("dapo", {"clip_low": 1.5}, r"clip_low is 0 to 1, got 1\.5"),
        ("gspo", {"clip_high": -1}, "clip_high is at least 0, got -1"),
        ("dr_grpo", {}, "'dr_grpo' needs max_completion_tokens"),
    ],
)
def test_losses_that_are_not_known(name: str, options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        loss(name, **options)
