"""What a trainer works out of rows before it trains them, switched on by its settings.

At the end: rows in updates: groups stay whole, idle ones are left out, means stay what they were.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import even_rollout
from tiny_model import TinyModel
from tiny_qwen import FAST, group_of_rows, same, tiny_qwen, weights

from katgym import RolloutGroup
from katgym_trainer import Row, Trainer, group_rows, pack, scale_by_pass_rate, trainer_logprobs
from katgym_trainer.losses.objective import Normaliser
from katgym_trainer.losses.scope import Scope
from katgym_trainer.minibatches import busy_places, is_trained, share, split_groups
from katgym_trainer.trainer_metrics import METRICS

KL = {"loss": {"kl_coef": 0.5}}


def long_rows() -> list[Row]:
    """Return two groups whose rollouts have unlike entropies."""
    one = group_of_rows([1.0, -1.0, 0.5, -0.5])
    return one + group_of_rows([2.0, -1.0, -1.0], name="b", seed=2)


def stepped(args: dict[str, Any], rows: list[Row], name: str = "grpo", **more: Any) -> Any:
    trainer = Trainer(tiny_qwen(), name, args={**FAST, **args}, **more)
    metrics = trainer.step_rows(rows)
    assert metrics.keys() <= METRICS.keys()
    return trainer, metrics


def test_a_reference_model_gives_the_log_probs_that_a_kl_term_needs() -> None:
    reference = tiny_qwen(seed=7)
    rows = group_of_rows([1.0, -1.0])
    known = trainer_logprobs(reference, pack(rows, max_tokens=99))
    with_refs = [r.replace(ref_logprobs=r.spread(known[i].numpy())) for i, r in enumerate(rows)]
    one, metrics = stepped(KL, rows, reference=reference)
    other, _ = stepped(KL, with_refs)
    assert same(weights(one.model), weights(other.model))
    assert metrics["train/ref_kl"] > 0 and metrics["train/logprob_hit_rate"] == 0
    assert one.step_rows(rows)["train/logprob_hit_rate"] == 0.5  # the second time they are known


def test_without_a_reference_the_model_without_its_adapters_is_it() -> None:
    rows = group_of_rows([1.0, -1.0])
    trainer, first = stepped({**KL, "lora_rank": 4}, rows)
    assert first["train/ref_kl"] == pytest.approx(0, abs=1e-12)  # adapters begin at nothing
    for _ in range(3):
        later = trainer.step_rows(rows)
    assert later["train/ref_kl"] > 1e-6 and later["train/logprob_hit_rate"] == 0.75


def test_log_probs_of_a_reference_are_found_again_by_another_trainer(tmp_path: Path) -> None:
    rows = group_of_rows([1.0, -1.0])
    args = {**KL, "logprob_cache_folder": str(tmp_path)}
    first, _ = stepped(args, rows, reference=tiny_qwen(seed=7))
    first.close()
    again, metrics = stepped(args, rows, reference=tiny_qwen(seed=7))
    again.close()
    assert metrics["train/logprob_hit_rate"] == 1
    other, metrics = stepped(args, rows, reference=tiny_qwen(seed=8))
    other.close()
    assert metrics["train/logprob_hit_rate"] == 0


def test_the_ratio_to_the_trainer_before_the_step_begins_at_one() -> None:
    options = {"ratio_to": "proximal", "importance": "token", "importance_max": math.inf}
    _, metrics = stepped({"loss": options}, long_rows(), "ppo")
    assert metrics["train/clip_fraction"] == 0 and metrics["train/importance"] > 0
    # With more updates, those before the step stay what is compared with.
    _, metrics = stepped({"loss": options, "num_updates": 2}, long_rows(), "ppo")
    assert metrics["train/clip_fraction"] > 0


def test_pairs_train_against_a_reference() -> None:
    rows = group_of_rows([1.0, -1.0])
    trainer, first = stepped({}, rows, "dpo", reference=tiny_qwen())
    assert first["train/loss"] == pytest.approx(math.log(2), abs=1e-6)  # no margin yet
    for _ in range(5):
        last = trainer.step_rows(rows)
    assert last["train/preference_accuracy"] == 1 and last["train/loss"] < 0.6


def test_pruning_leaves_fewer_tokens(subtests: pytest.Subtests) -> None:
    rows = long_rows()
    (whole,) = pack(rows, max_tokens=1000)
    num = whole.stats.num_tree
    for pruning in ["best", "sample"]:
        with subtests.test(pruning=pruning):
            trainer, _ = stepped({"pruning": pruning, "max_unique_tokens": num // 2}, rows)
            steps = [trainer.step_rows(rows) for _ in range(8)]
            shares = [metrics["train/kept_tokens"] for metrics in steps]
            for metrics, kept in zip(steps, shares, strict=True):
                assert metrics["train/num_rows"] == 7
                assert metrics.get("train/num_tokens", 0) == pytest.approx(kept * num)
                assert (metrics["train/kept_trained"] < 1) == (kept < 1)
                assert pruning == "sample" or 0 < kept <= 0.5
            # A draw is another each step, and may be empty.
            assert (len(set(shares)) > 3) == (pruning == "sample")


def test_groups_without_advantages_take_nothing_of_the_budget() -> None:
    rows = group_of_rows([1.0, -1.0])
    (whole,) = pack(rows, max_tokens=1000)
    idle = group_of_rows([0.0, 0.0, 0.0], name="idle", seed=5)
    args = {"pruning": "best", "max_unique_tokens": whole.stats.num_tree}
    alone, _ = stepped({}, rows + idle)
    pruned, metrics = stepped(args, rows + idle)
    assert metrics["train/kept_tokens"] == 1 and metrics["train/num_idle_rows"] == 3
    assert same(weights(alone.model), weights(pruned.model))
    _, metrics = stepped(args, idle)
    assert metrics["train/is_skipped"] == 1 and "train/kept_tokens" not in metrics


def test_entropies_scale_what_is_trained_and_not_how_far() -> None:
    rows = long_rows()
    plain, _ = stepped({}, rows)
    scaled, _ = stepped({"advantage_scaling": "entropy", "max_scale": 1.5}, rows)
    unscaled, _ = stepped({"advantage_scaling": "entropy", "scaling_power": 0.0}, rows)
    assert not same(weights(plain.model), weights(scaled.model))
    for name, tensor in weights(plain.model).items():
        assert torch.allclose(tensor, weights(unscaled.model)[name], atol=1e-6)


def test_pass_rates_scale_groups() -> None:
    groups = [
        RolloutGroup(rollouts=[even_rollout("a", 1.0, [5, 6]), even_rollout("b", 0.0, [5, 7])]),
        RolloutGroup(rollouts=[even_rollout("c", 1.0, [8]), even_rollout("d", 1.0, [9, 5]),
                               even_rollout("e", 0.0, [6])]),
    ]  # fmt: skip
    args = {**FAST, "advantage_scaling": "pass_rate"}
    trainer, other = Trainer(tiny_qwen(), "grpo", args=args), Trainer(tiny_qwen(), args=FAST)
    trainer.step(groups)
    rows = group_rows(groups, "grpo")
    first, last = rows[0].group, rows[-1].group
    other.step_rows(scale_by_pass_rate(rows, {first: 0.5, last: 2 / 3}))
    assert same(weights(trainer.model), weights(other.model))
    with pytest.raises(ValueError, match="'pass_rate' needs the groups' rewards: call step, or"):
        trainer.step_rows(rows)


def test_rows_beyond_the_budget_are_trained_in_parts_if_asked_for() -> None:
    rows = long_rows()
    with pytest.raises(ValueError, match=r"tokens by itself, the budget is 6: .*should_split=True"):
        stepped({"max_tokens": 6}, rows)
    whole, _ = stepped({}, rows)
    in_parts, _ = stepped({"max_tokens": 6, "should_split": True}, rows)
    for name, tensor in weights(whole.model).items():
        assert np.allclose(tensor, weights(in_parts.model)[name], atol=1e-4)


def test_settings_that_do_not_go_together(subtests: pytest.Subtests) -> None:
    for args, words in [
        ({"max_scale": 3.0}, r"max_scale=3\.0 changes nothing; it needs advantage_scaling"),
        ({"scaling_power": 2.0}, r"scaling_power=2\.0 changes nothing; it needs advantage_scaling"),
        ({"max_unique_tokens": 9}, "max_unique_tokens=9 changes nothing; it needs pruning"),
        ({"pruning": "best"}, "pruning='best' needs max_unique_tokens, got None"),
        ({"pruning": "worst"}, "pruning is one of 'none', 'best', 'sample', got 'worst'"),
        ({"advantage_scaling": "x"}, "advantage_scaling is one of 'none', 'entropy', 'pass_rate'"),
        ({"logprob_cache_mib": 0}, "logprob_cache_mib is an int >= 1, got 0"),
    ]:
        with subtests.test(args=args), pytest.raises(ValueError, match=words):
            Trainer(TinyModel(), "grpo", args=args)
    with pytest.raises(ValueError, match="algorithm 'sft' weighs nothing by advantages"):
        Trainer(TinyModel(), "sft", args={"advantage_scaling": "entropy"})


def test_a_cache_that_nothing_fills_is_refused() -> None:
    for option in [{"logprob_cache_mib": 9}, {"logprob_cache_folder": "x"}]:
        with pytest.raises(ValueError, match="changes nothing; loss 'grpo' with these options"):
            Trainer(TinyModel(), "grpo", args=option)
    Trainer(TinyModel(), "grpo", args={"logprob_cache_mib": 9, **KL})


def test_groups_without_advantages_are_not_run_for_their_entropies_or_log_probs() -> None:
    class Counting(TinyModel):
        tokens: ClassVar[list[int]] = []

        def hidden(self, forest: Any, context: Any) -> Any:
            self.tokens.append(len(forest.input_ids))
            return super().hidden(forest, context)

    rows = [Row([1, 2 + i, 3], [0, 1, 1], [0, -1, -1], 1 - 2.0 * i, group="busy") for i in (0, 1)]
    idle = [Row([7 + i, 8, 9, 10], [0, 1, 1, 1], [0, -1, -1, -1], group="idle") for i in (0, 1)]
    args = {**FAST, "advantage_scaling": "entropy", "loss": {"ratio_to": "proximal"}}
    metrics = Trainer(Counting(), "grpo", args=args).step_rows([idle[0], *rows, idle[1]])
    assert Counting.tokens == [5, 5]  # entropies, and the step: before it nothing has changed
    assert metrics["train/num_idle_rows"] == 2
    Counting.tokens.clear()
    Trainer(Counting(), "grpo", args={**args, "num_updates": 2}).step_rows([*idle, *rows])
    assert Counting.tokens == [5, 5, 5]  # the trainer before the step, for its second update


def test_a_reference_is_there_if_and_only_if_it_is_needed() -> None:
    with pytest.raises(ValueError, match="loss 'grpo' looks at no reference; set its kl_coef"):
        Trainer(TinyModel(), "grpo", reference=TinyModel())
    trainer = Trainer(TinyModel(), "grpo", args=KL)
    with pytest.raises(ValueError, match=r"compares with a reference model: give Trainer\(refer"):
        trainer.step_rows([Row([1, 2], [0, 1], [0, -1], 1.0)])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(
    groups=st.lists(st.sampled_from(["a", "b", "c", "d", "e", None]), max_size=15),
    num_parts=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_parts_hold_every_row_once_and_groups_whole(
    groups: list[str | None], num_parts: int, seed: int
) -> None:
    rows = [Row([1, 2], [0, 1], group=group) for group in groups]
    parts = split_groups(rows, num_parts, rng=rng(seed))
    assert sorted(id(row) for part in parts for row in part) == sorted(map(id, rows))
    for group in {group for group in groups if group is not None}:
        assert sum(any(row.group == group for row in part) for part in parts) == 1
    num_groups = len({g for g in groups if g is not None}) + groups.count(None)
    assert len(parts) == min(num_parts, num_groups) and all(parts)
    again = split_groups(rows, num_parts, rng=rng(seed))
    assert [list(map(id, part)) for part in parts] == [list(map(id, part)) for part in again]


def test_rows_of_a_rollout_without_a_group_stay_together() -> None:
    rows = [Row([1, 2], [0, 1], rollout=name) for name in "xyxy"]
    parts = split_groups(rows, 2, rng=rng())
    assert sorted("".join(str(row.rollout) for row in part) for part in parts) == ["xx", "yy"]


def test_one_part_is_the_rows_in_order_without_a_draw() -> None:
    rows = [Row([1, 2], [0, 1], group=name) for name in "bab"]
    untouched = rng()
    (part,) = split_groups(rows, 1, rng=untouched)
    assert part == rows and untouched.random() == rng().random()


def test_idle_groups_are_those_without_an_advantage_on_a_trained_token() -> None:
    rows = [
        Row([1, 2, 3], [0, 1, 1], advantages=0.0, group="half"),
        Row([1, 2, 3], [0, 1, 1], advantages=1.0, group="half"),
        Row([1, 2, 3], [0, 1, 1], advantages=0.0, group="zero"),
        Row([1, 2, 3], [0, 0, 1], advantages=[9.0, 9.0, 0.0], group="elsewhere"),
        Row([1, 2, 3], [0, 1, 1], advantages=1.0, weight=0.0, group="weightless"),
        Row([1, 2, 3], [0, 1, 1], advantages=[0.0, 0.0, -1.0]),
    ]
    assert [rows[place].group for place in busy_places(rows)] == ["half", "half", None]
    assert busy_places([]) == []


def test_trained_means_a_token_with_weight() -> None:
    assert not is_trained([])
    assert not is_trained([Row([1, 2], [1, 0]), Row([1, 2], [0, 1], weight=0)])
    assert is_trained([Row([1, 2], [1, 0]), Row([1, 2], [0, 1], weight=0.1)])


@given(
    data=st.lists(
        st.tuples(
            st.integers(0, 4), st.lists(st.booleans(), min_size=1, max_size=5), st.integers(0, 3)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_shares_are_those_of_the_scope(data: list[tuple[int, list[bool], int]]) -> None:
    rows = [
        Row([1, *range(2, 2 + len(mask))], [False, *mask], weight=weight, rollout=rollout)
        for rollout, mask, weight in data
    ]
    some = [row for row in rows if row.rollout in (0, 1)]
    if not is_trained(some):
        return
    inside, whole = (Scope.of(pack(these, max_tokens=99)) for these in (some, rows))
    tokens = share(some, rows, Normaliser.TOKENS)
    assert tokens == pytest.approx(inside.weighted_tokens / whole.weighted_tokens)
    for normaliser in (Normaliser.ROLLOUTS, Normaliser.ROLLOUT_TOKENS):
        wanted = inside.rollout_weight / whole.rollout_weight
        assert share(some, rows, normaliser) == pytest.approx(wanted)
    assert share(rows, rows, Normaliser.ROLLOUTS) == 1
    with pytest.raises(ValueError, match="what normaliser 'pairs' counts"):
        share(rows, rows, "pairs")  # type: ignore[arg-type]
