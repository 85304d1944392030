"""Loss, log-probs and gradients on packed forests are those of every row run by itself."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from nightly import IS_NIGHT
from row_by_row import total_loss
from tiny_model import TinyModel
from tiny_model_rows import check_equal, gradients, row_logprobs, row_outputs, sample_rows

from katgym_trainer import LOSSES, Row, forward_backward, loss, pack, trainer_logprobs

OPTIONS = {"dr_grpo": {"max_completion_tokens": 32}}


def sample_pairs(model: TinyModel, seed: int = 0) -> list[Row]:
    """Return rows in pairs of one chosen and one rejected answer to a prompt."""
    rows = sample_rows(model, "group", seed)[:4] + sample_rows(model, "nothing shared", seed)
    return [
        row.replace(advantages=1.0 if i % 2 else -1.0, group=i // 2, weight=1.0)
        for i, row in enumerate(rows)
    ]


KINDS = ["group", "steps", "duplicates and prefixes", "nothing shared"]


def test_loss_and_gradients_are_those_of_the_rows(subtests: pytest.Subtests) -> None:
    kinds = KINDS if IS_NIGHT else ["group", "duplicates and prefixes"]
    for name, kind in itertools.product([name for name in LOSSES if name != "dpo"], kinds):
        with subtests.test(name=name, kind=kind):
            rows = sample_rows(TinyModel(), kind)
            check_loss(name, OPTIONS.get(name, {}), rows, is_every=name == "grpo")


def check_loss(
    name: str, options: dict[str, Any], rows: list[Row], *, is_every: bool = False
) -> None:
    """The loss and its gradient, at any budget, below the longest row too, are the oracle's.

    is_every: by day, too, all packings are tried.
    """
    model = TinyModel()
    wanted = total_loss(name, rows, lambda row: row_outputs(model, row), options)
    wanted.backward()
    oracle = gradients(model)
    longest = max(map(len, rows))
    whole = pack(rows, max_tokens=10_000)
    some = pack(rows, max_tokens=longest + 3)
    packings = [some, [forest.in_parts(5) for forest in whole]]
    if is_every or IS_NIGHT:
        packings += [whole, [forest.in_parts(1) for forest in some]]
    for forests in packings:
        metrics = forward_backward(model, forests, loss(name, **options))
        assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=1e-10, abs=1e-12)
        check_equal(gradients(model), oracle, 1e-10)


def test_what_losses_may_add_is_exact_too(subtests: pytest.Subtests) -> None:
    for name, options in [
        ("grpo", {"kl_coef": 0.3}),
        ("grpo", {"kl_coef": 0.3, "kl_estimator": "k1", "is_kl_weighted": True}),
        ("reinforce", {"kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.1}),
        ("dr_grpo", {"entropy_coef": 0.2, "kl_coef": 0.1, "max_completion_tokens": 16}),
        ("rloo", {"importance": "token", "importance_max": 1.1}),
        ("reinforce", {"importance": "sequence", "mismatch_mask": "sequence"}),
        ("grpo", {"mismatch_mask": "geometric", "mismatch_low": 0.9, "mismatch_high": 1.05}),
        ("dapo", {"mismatch_mask": "token", "mismatch_low": 0.8, "mismatch_high": 1.3}),
        ("ppo", {"ratio_to": "proximal", "importance": "token", "importance_max": math.inf}),
        ("gspo", {"ratio_to": "proximal", "importance": "sequence", "entropy_coef": 0.1}),
        ("gspo_token", {"clip_low": 0.1, "clip_high": 0.1}),
        ("cispo", {"ratio_to": "proximal", "importance": "token", "mismatch_mask": "token"}),
        ("ppo", {"dual_clip": 1.05, "clip_low": 0.1, "clip_high": 0.3}),
    ]:
        for kind in ("steps", "duplicates and prefixes") if IS_NIGHT else ("steps",):
            with subtests.test(name=name, options=options, kind=kind):
                check_loss(name, options, sample_rows(TinyModel(), kind))


def test_gspo_by_token_is_gspo_where_a_row_has_one_advantage_and_else_is_not() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")

    def found(name: str, own: list[Row]) -> list[torch.Tensor]:
        model.zero_grad()
        forward_backward(model, pack(own, max_tokens=10_000), loss(name, clip_low=1, clip_high=9))
        return gradients(model)

    alike = [row.replace(advantages=np.full(len(row.token_ids), 0.7)) for row in rows]
    check_equal(found("gspo_token", alike), found("gspo", alike), 1e-10)
    rising = [row.replace(advantages=np.arange(len(row.token_ids)) / 10.0) for row in rows]
    apart = [
        float((a - b).abs().max())
        for a, b in zip(found("gspo_token", rising), found("gspo", rising), strict=True)
    ]
    assert max(apart) > 1e-3


def test_preferences_are_exact_whether_pairs_are_packed_together_or_not(
    subtests: pytest.Subtests,
) -> None:
    for options in [{}, {"beta": 0.5, "label_smoothing": 0.1}]:
        with subtests.test(options=options):
            rows = sample_pairs(TinyModel())
            check_loss("dpo", options, rows)
            model = TinyModel()
            forward_backward(model, pack(rows, max_tokens=10_000), loss("dpo", **options))
            once = gradients(model)
            apart = [forest for row in rows for forest in pack([row], max_tokens=100)]
            apart = [  # as if they were of one pack
                dataclasses.replace(f, row_group=torch.tensor([i // 2]), pack_number=0)
                for i, f in enumerate(apart)
            ]
            metrics = forward_backward(model, apart, loss("dpo", **options))
            check_equal(gradients(model), once, 1e-10)
            assert 0 <= metrics["preference_accuracy"] <= 1


def test_logprobs_are_those_of_the_rows(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind=kind):
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


def test_rollouts_and_groups_of_several_packs_are_told_apart() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group") + sample_rows(model, "nothing shared", seed=1)
    forward_backward(model, pack(rows, max_tokens=10_000), loss("grpo"))
    once = gradients(model)
    halves = [*pack(rows[:5], max_tokens=10_000), *pack(rows[5:], max_tokens=12)]
    forward_backward(model, halves, loss("grpo"))
    check_equal(gradients(model), once, 1e-10)
    pairs = sample_pairs(model)
    forward_backward(model, pack(pairs, max_tokens=10_000), loss("dpo"))
    once = gradients(model)
    halves = [*pack(pairs[:4], max_tokens=10_000), *pack(pairs[4:], max_tokens=12)]
    forward_backward(model, halves, loss("dpo"))
    check_equal(gradients(model), once, 1e-10)
    with pytest.raises(ValueError, match="row 0 is in two forests: these are told by rows"):
        trainer_logprobs(model, halves)


def test_temperature_divides_the_logits() -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")
    metrics = forward_backward(model, pack(rows, max_tokens=99), loss("sft"), temperature=0.5)
    model.zero_grad()

    wanted = total_loss("sft", rows, lambda row: row_outputs(model, row, temperature=0.5))
    assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=1e-12)


def test_without_proximal_log_probs_they_are_those_of_now(subtests: pytest.Subtests) -> None:
    model = TinyModel()
    rows = sample_rows(model, "group")
    own = trainer_logprobs(model, pack(rows, max_tokens=10_000))
    told = [row.replace(proximal_logprobs=row.spread(own[i])) for i, row in enumerate(rows)]
    untold = [row.replace(proximal_logprobs=None) for row in rows]
    for name, max_tokens in [("ppo", 10_000), ("gspo", 20)]:
        with subtests.test(name=name, max_tokens=max_tokens):
            chosen = loss(name, ratio_to="proximal", importance="sequence")
            found = []
            for given in (told, untold):
                forests = pack(given, max_tokens=max_tokens, should_split=True)
                forward_backward(model, forests, chosen)
                found.append(gradients(model))
            check_equal(found[1], found[0], 1e-10)


def test_rows_that_lack_what_a_loss_needs_are_refused(subtests: pytest.Subtests) -> None:
    for name, options, row, words in [
        ("rloo", {"kl_coef": 0.1}, {}, "row 0 has no ref_logprobs, which loss 'rloo' compares"),
        ("rloo", {"importance": "token"}, {}, "row 0 has no policy_logprobs"),
        ("dpo", {}, {"ref_logprobs": [0, -1]}, "row 0 has advantage 0: loss 'dpo' takes"),
        ("dpo", {}, {"ref_logprobs": [0, -1], "advantages": 1.0}, "'dpo' needs pairs: a group has"),
    ]:
        with subtests.test(words=words):
            forests = pack([Row([1, 2], [0, 1], **row)], max_tokens=5)
            with pytest.raises(ValueError, match=words):
                forward_backward(TinyModel(), forests, loss(name, **options))


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


def test_losses_that_are_not_known(subtests: pytest.Subtests) -> None:
    for name, options, words in [
        ("grp", {}, r"unknown loss 'grp'\. Did you mean 'grpo'\?; allowed: sft, "),
        (
            "grpo",
            {"clip_hi": 1},
            r"'clip_hi'\. Did you mean 'clip_high'\?; .* kl_coef, .* clip_low,",
        ),
        ("sft", {"clip_high": 1}, "loss 'sft' has no option 'clip_high'; allowed: none"),
        ("dapo", {"clip_low": 1.5}, r"clip_low is a number from 0 to 1, got 1\.5"),
        ("gspo", {"clip_high": -1}, "clip_high is a number >= 0, or infinity, got -1"),
        ("dr_grpo", {}, "'dr_grpo' needs max_completion_tokens"),
        ("cispo", {"dual_clip": 3}, "'cispo' bounds a weight, not an objective"),
        ("ppo", {"dual_clip": 1.0}, r"dual_clip is a number > 1, or None, got 1\.0"),
        ("grpo", {"kl_coef": -1}, "kl_coef is a number >= 0, got -1"),
        ("grpo", {"kl_estimator": "k4"}, "kl_estimator is one of 'k1', 'k2', 'k3', got 'k4'"),
        ("grpo", {"is_kl_weighted": True}, "is_kl_weighted does nothing without kl_coef"),
        ("grpo", {"importance": "token"}, "use ratio_to='proximal' with rows that have proximal"),
        ("rloo", {"importance_max": 2}, "importance_max does nothing without importance"),
        ("rloo", {"importance": "token", "importance_max": 0}, "importance_max is a number > 0"),
        ("grpo", {"mismatch_low": 0.5}, "do nothing without mismatch_mask"),
        ("grpo", {"mismatch_mask": "token", "mismatch_low": 3}, "below mismatch_high, got 3, 2"),
        ("grpo", {"ratio_to": "old"}, "ratio_to is one of 'policy', 'proximal', got 'old'"),
        ("dpo", {"beta": 0}, "beta is a number > 0, got 0"),
        ("dpo", {"label_smoothing": 0.5}, r"smoothing is a number >= 0 and < 0\.5, got"),
    ]:
        with subtests.test(name=name, options=options), pytest.raises(ValueError, match=words):
            loss(name, **options)
