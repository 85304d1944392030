"""Log-probs that are far apart: gradients stay finite, are those of the formulas, and make steps.

Not here: log-probs that are near each other (`test_exact_gradients.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from nightly import some_of
from tiny_qwen import FAST, group_of_rows, same, tiny_qwen, weights

from katgym_trainer import Loss, Row, loss
from katgym_trainer.losses import Occurrences
from katgym_trainer.losses.objective import Coupling
from katgym_trainer.trainer import Trainer

KLS: list[dict[str, Any]] = [
    {},
    *(
        {"kl_coef": 0.1, "kl_estimator": estimator, "is_kl_weighted": is_weighted}
        for estimator in ("k1", "k2", "k3")
        for is_weighted in (False, True)
    ),
]
CORRECTIONS: list[dict[str, Any]] = [
    {},
    *({"importance": kind} for kind in ("token", "sequence")),
    *({"importance": kind, "importance_max": math.inf} for kind in ("token", "sequence")),
    *({"mismatch_mask": kind} for kind in ("token", "sequence", "geometric")),
]
CLIPPED = ["grpo", "dr_grpo", "dapo", "ppo", "gspo", "gspo_token", "cispo"]


def every_loss() -> list[Loss]:
    """Return each loss with each KL, with each correction, and with bounds that are off or two."""
    found = [loss("sft"), loss("dpo")]
    for name in ("reinforce", "rloo"):
        found += [loss(name, **kl, **more) for kl in KLS for more in CORRECTIONS]
    for name in CLIPPED:
        options = {"max_completion_tokens": 16} if name == "dr_grpo" else {}
        bounds: list[dict[str, Any]] = [{}, {"clip_high": math.inf}]
        bounds += [{"dual_clip": 3.0}] if name != "cispo" else []
        for kl, bound, more in itertools.product(KLS, bounds, CORRECTIONS):
            if "importance" not in more:
                found.append(loss(name, **options, **kl, **bound, **more))
            found.append(loss(name, **options, **kl, **bound, **more, ratio_to="proximal"))
    return found


FAR: list[dict[str, float]] = [
    *({"policy_logprobs": value} for value in (-60.0, -95.0, -9999.0, -3.4e38, -math.inf)),
    {"trainer_logprobs": -80.0, "policy_logprobs": 0.0},
    {"trainer_logprobs": -80.0, "policy_logprobs": 0.0, "proximal_logprobs": -0.1},
    {"trainer_logprobs": -200.0, "ref_logprobs": -0.1},
]
"""Log-probs of one token that are far apart: the sampler's far below the trainer's, or above."""


def far_occurrences(*, is_far: bool) -> Occurrences:
    """Return pairs of rows of four and of three tokens, one for each of `FAR` and an advantage.

    is_far: whether the first token of each pair has the log-probs of `FAR`.
    """
    near = {"trainer_logprobs": -3.5, "policy_logprobs": -3.5, "proximal_logprobs": -3.4,
            "ref_logprobs": -3.6}  # fmt: skip
    values: dict[str, list[float]] = {name: [] for name in [*near, "advantages"]}
    for far, advantage in itertools.product(FAR, (1.0, -1.0, 0.0)):
        for token in range(7):
            for name, value in {**near, **(far if is_far and not token else {})}.items():
                values[name].append(value + 0.03 * token)
            values["advantages"].append([1.0, -1.0, 0.5][token % 3] if token else advantage)
    num = len(values["advantages"]) // 7
    tensors = {name: torch.tensor(each, dtype=torch.float32) for name, each in values.items()}
    tensors["trainer_logprobs"].requires_grad_()
    return Occurrences(
        **tensors,
        entropy=torch.ones(7 * num),
        factors=torch.full((7 * num,), 1 / (7 * num)),
        row=torch.tensor([0, 0, 0, 0, 1, 1, 1]).repeat(num)
        + 2 * torch.arange(num).repeat_interleave(7),
        group=torch.arange(num).repeat_interleave(7),
        num_rows=2 * num,
    )


def test_log_probs_far_apart_leave_gradients_finite_and_those_of_other_tokens_as_they_are() -> None:
    def found(chosen: Loss, *, is_far: bool) -> tuple[torch.Tensor, torch.Tensor]:
        far = far_occurrences(is_far=is_far)
        if chosen.name == "dpo":  # the rows of a pair
            far = dataclasses.replace(far, advantages=1.0 - 2 * (far.row % 2))
        terms = chosen.terms(far)
        (terms.terms * far.factors).sum().backward()  # type: ignore[no-untyped-call]
        told = torch.tensor([mean.total for mean in terms.metrics.values()])
        assert far.trainer_logprobs.grad is not None
        return far.trainer_logprobs.grad.view(-1, 7), told

    # What a token's term depends on is the token, its row of four or its pair of rows.
    first_other = {Coupling.TOKEN: 1, Coupling.ROW: 4, Coupling.GROUP: 7}
    wrong = []
    for chosen in some_of(every_loss(), 50):
        gradient, told = found(chosen, is_far=True)
        # So is the square, of which the norm is made.
        is_right = bool(gradient.square().sum().isfinite() and told.isfinite().all())
        other = first_other[chosen.coupling]
        near = found(chosen, is_far=False)[0]
        if not (is_right and torch.equal(gradient[:, other:], near[:, other:])):
            wrong.append(chosen)
    assert not wrong


def gradient_of(chosen: Loss, **tokens: list[float]) -> list[float]:
    """Return the gradient of the tokens of one row, whose log-probs are -1 where none are given."""
    num = len(tokens["advantages"])
    minus_ones = torch.full((num,), -1.0, dtype=torch.float64)
    names = ("trainer_logprobs", "policy_logprobs", "proximal_logprobs", "ref_logprobs")
    values = {name: torch.tensor(each, dtype=torch.float64) for name, each in tokens.items()}
    row = Occurrences(
        **{**dict.fromkeys(names, minus_ones), **values},
        entropy=-minus_ones,
        factors=-minus_ones,
        row=torch.zeros(num, dtype=torch.int64),
        group=torch.zeros(num, dtype=torch.int64),
        num_rows=1,
    )
    row.trainer_logprobs.requires_grad_()
    (gradient,) = torch.autograd.grad(chosen.terms(row).terms.sum(), row.trainer_logprobs)
    return gradient.tolist()


@pytest.mark.parametrize("ratio_to", ["policy", "proximal"])
@pytest.mark.parametrize("name", ["grpo", "dapo", "ppo", "gspo", "gspo_token"])
def test_a_ratio_has_the_gradient_of_its_formula_below_e_20_and_none_beyond(
    name: str, ratio_to: str, subtests: pytest.Subtests
) -> None:
    for log_ratio, advantage, options, wanted in [
        (59.0, 1.0, {}, 0.0),  # clipped
        (9998.0, 1.0, {}, 0.0),
        (9998.0, -1.0, {}, 0.0),  # no bound but e^20
        (20.5, -1.0, {}, 0.0),
        (19.5, -1.0, {}, math.exp(19.5)),
        (19.5, 1.0, {"clip_high": math.inf}, -math.exp(19.5)),
        (9998.0, 1.0, {"clip_high": math.inf}, 0.0),
        (19.5, -1.0, {"dual_clip": 3.0}, 0.0),
        (9998.0, -1.0, {"dual_clip": 3.0}, 0.0),
        (9998.0, 0.0, {}, 0.0),
        (-80.0, -1.0, {}, 0.0),  # clipped
        (-80.0, 1.0, {}, -math.exp(-80)),
        (-25.0, 1.0, {}, -math.exp(-25)),
    ]:
        with subtests.test(log_ratio=log_ratio, advantage=advantage, options=options):
            sides = {"trainer_logprobs": [-1.0], f"{ratio_to}_logprobs": [-1.0 - log_ratio]}
            if log_ratio < 0:
                sides = {"trainer_logprobs": [log_ratio], f"{ratio_to}_logprobs": [0.0]}
            chosen = loss(name, ratio_to=ratio_to, **options)
            found = gradient_of(chosen, advantages=[advantage], **sides)
            assert found == pytest.approx([wanted], rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("name", "options", "advantage", "tokens", "wanted"),
    [
        ("cispo", {}, 1.0, {"policy_logprobs": [-9999.0]}, -5.0),
        ("cispo", {"clip_high": math.inf}, -1.0, {"policy_logprobs": [-9999.0]}, math.exp(20)),
        ("rloo", {"importance": "token"}, 1.0, {"policy_logprobs": [-9999.0]}, -2.0),
        ("rloo", {"mismatch_mask": "token"}, 1.0, {"policy_logprobs": [-9999.0]}, 0.0),
        ("rloo", {"kl_coef": 0.5}, 0.0, {"trainer_logprobs": [-80.0]}, 0.0),
        ("rloo", {"kl_coef": 0.5}, 0.0, {"trainer_logprobs": [-20.5]}, 0.5 - 0.5 * math.exp(19.5)),
        ("rloo", {"kl_coef": 0.5}, 0.0, {"ref_logprobs": [-9999.0]}, 0.5),
    ],
)  # fmt: skip
def test_weights_and_kl_are_bounded_as_their_options_say(
    name: str,
    options: dict[str, Any],
    advantage: float,
    tokens: dict[str, list[float]],
    wanted: float,
) -> None:
    found = gradient_of(loss(name, **options), advantages=[advantage], **tokens)
    assert found == pytest.approx([wanted], rel=1e-12, abs=0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_weighted_kl_has_the_gradient_of_its_formula_below_e_20_and_none_beyond(
    estimator: str,
) -> None:
    chosen = loss("rloo", kl_coef=1.0, kl_estimator=estimator, is_kl_weighted=True)
    kl, slope = {
        "k1": (0.5, 1.0),
        "k2": (0.125, 0.5),
        "k3": (math.exp(-0.5) - 0.5, -math.expm1(-0.5)),
    }[estimator]
    found = gradient_of(
        chosen, advantages=[0.0, 0.0], policy_logprobs=[-20.5, -9999.0], ref_logprobs=[-1.5, -1.5]
    )
    assert found == pytest.approx([math.exp(19.5) * (kl + slope), 0.0], rel=1e-12, abs=0)


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
@pytest.mark.parametrize("far", [-60.0, -9999.0])
def test_one_token_that_was_ruled_out_moves_the_ratio_of_a_long_row_by_no_more_than_e_20(
    name: str, far: float
) -> None:
    num = 600
    found = gradient_of(
        loss(name), advantages=[-1.0] * num, policy_logprobs=[far] + [-1.0] * (num - 1)
    )
    assert found == pytest.approx([0.0] + [math.exp(20 / num)] * (num - 1), rel=1e-9)


@pytest.mark.parametrize("kind", ["token", "sequence", "geometric"])
def test_masks_keep_what_lies_within_bounds_beyond_e_20_too(kind: str) -> None:
    chosen = loss("rloo", mismatch_mask=kind, mismatch_low=1e-12, mismatch_high=1e12)
    for log_rho, wanted in [(25.0, -1.0), (30.0, 0.0), (9999.0, 0.0), (-25.0, -1.0), (-30.0, 0.0)]:
        found = gradient_of(
            chosen,
            advantages=[1.0],
            trainer_logprobs=[min(0.0, log_rho)],
            policy_logprobs=[min(0.0, -log_rho)],
        )
        assert found == [wanted], log_rho


def rows_with(advantage: float, **entry: float) -> list[Row]:
    """Return rows of one group; an answer's second token has what `entry` says."""
    first, *others = group_of_rows([advantage, -advantage, 1.0, -1.0])
    changed = {"policy_logprobs": first.policy_logprobs, "advantages": first.advantages}
    arrays = {name: np.array(each) for name, each in changed.items()}
    for name, value in entry.items():
        arrays[name][6] = value
    return [
        row.replace(ref_logprobs=[-4.1] * len(row)) for row in (first.replace(**arrays), *others)
    ]


@pytest.mark.parametrize(
    ("name", "dtype", "more"),
    some_of(
        itertools.product(
            ["reinforce", "rloo", *CLIPPED],
            ["float32", "bfloat16"],
            [{}, {"kl_coef": 0.01}, {"kl_coef": 0.01, "is_kl_weighted": True}],
        ),
        7,
    ),
)
def test_a_step_that_holds_a_token_that_was_ruled_out_is_made(
    name: str, dtype: str, more: dict[str, Any], subtests: pytest.Subtests
) -> None:
    options = {"max_completion_tokens": 6, **more} if name == "dr_grpo" else more
    args = {**FAST, "learning_rate": 1e-4, "dtype": dtype, "loss": options}
    trainer = Trainer(tiny_qwen(), name, args=args)
    for far, advantage in itertools.product((-60.0, -95.0, -9999.0), (1.0, -1.0)):
        with subtests.test(far=far, advantage=advantage):
            before = weights(trainer.model)
            metrics = trainer.step_rows(rows_with(advantage, policy_logprobs=far))
            assert metrics["train/num_updates"] == 1 and metrics["train/is_skipped"] == 0
            assert all(map(math.isfinite, metrics.values()))
            # The least answer has 3 tokens, and a row's ratio of GSPO is their geometric mean.
            largest = math.exp(20 / 3) if name.startswith("gspo") else 5.0
            assert 0 < metrics["train/grad_norm"] < 20 * largest
            assert not same(weights(trainer.model), before)
            assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "ppo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_that_was_ruled_out_changes_weights_as_one_without_an_advantage(
    name: str, advantage: float
) -> None:
    options = {"max_completion_tokens": 6} if name == "dr_grpo" else {}
    found = []
    for entry in ({"policy_logprobs": -9999.0}, {"advantages": 0.0}):
        trainer = Trainer(tiny_qwen(), name, args={**FAST, "loss": options})
        trainer.step_rows(rows_with(advantage, **entry))
        found.append(weights(trainer.model))
    assert same(*found)
