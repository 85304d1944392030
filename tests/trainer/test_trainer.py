"""Steps of the trainer: what they learn of rows and of groups, and what they say.

Then the updates of a step: their order, learning rate and size, and those that are left out.
Not here: models (`test_trainer_models.py`).
"""

from __future__ import annotations

import itertools
import math
import os
import signal
from typing import Any

import pytest
import torch
from made_rollouts import even_rollout
from nightly import some_of
from tiny_model import TinyModel
from tiny_qwen import FAST, group_of_rows, same, supervised, tiny_qwen, weights

from katgym import RolloutGroup
from katgym_trainer import ALGORITHMS, PackedForest, Row, TreeContext, pack, trainer_logprobs
from katgym_trainer.optimization.norm_watch import NonFiniteGradientError
from katgym_trainer.optimization.optimizers import schedule_factor
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.trainer_metrics import METRICS


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    some_of(itertools.product(["adamw", "muon"], ["float32", "bfloat16"]), 2),
)
def test_sft_learns_rows_by_heart(optimizer: str, dtype: str) -> None:
    args = {**FAST, "optimizer": optimizer, "dtype": dtype}
    trainer = Trainer(tiny_qwen(), "sft", args=args)
    losses = [trainer.step_rows(supervised())["train/loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(math.log(60), abs=0.3)  # nothing is known at first
    assert losses[-1] < 0.1
    assert trainer.num_steps == 40
    assert {p.dtype for p in trainer.model.parameters()} == {getattr(torch, dtype)}


def test_rows_with_an_advantage_become_likely_and_others_unlikely(
    subtests: pytest.Subtests,
) -> None:
    rows = group_of_rows([1.0, -1.0, 1.0, -1.0])
    own = trainer_logprobs(tiny_qwen(), pack(rows, max_tokens=99))
    fresh = [row.replace(policy_logprobs=row.spread(own[i])) for i, row in enumerate(rows)]
    before = [float(own[i].sum()) for i in range(len(rows))]
    names = ["reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo"]
    for name in some_of(names, 4):
        with subtests.test(name=name):
            loss = {"max_completion_tokens": 6} if name == "dr_grpo" else {}
            trainer = Trainer(tiny_qwen(), name, args={**FAST, "learning_rate": 1e-3, "loss": loss})
            for _ in range(3):
                trainer.step_rows(fresh)
            after = trainer_logprobs(trainer.model, pack(rows, max_tokens=99))
            moved = [float(after[i].sum()) - before[i] for i in range(len(rows))]
            assert [value > 0 for value in moved] == [True, False, True, False]
            assert min(map(abs, moved)) > 0.01


def test_metrics_are_those_of_the_table() -> None:
    trainer = Trainer(tiny_qwen(), "grpo", args={"learning_rate": 1e-4, "max_tokens": 12})
    rows = group_of_rows([1.0, -1.0]) + group_of_rows([0.0, 0.0], name="idle", seed=1)
    metrics = trainer.step_rows(rows)
    optional = (
        "importance", "mismatch", "ref_kl", "reverse_kl", "preference", "kept", "logprob_hit_rate",
        "rank_balance", "route_difference", "rollout/", "data/",
    )  # fmt: skip
    expected = {name for name in METRICS if not name.removeprefix("train/").startswith(optional)}
    assert metrics.keys() == expected
    num_flat = len(rows[0]) + len(rows[1])
    assert metrics["train/num_rows"] == 4 and metrics["train/num_idle_rows"] == 2
    assert metrics["train/num_flat_tokens"] == num_flat
    assert metrics["train/num_forests"] == 2 and metrics["train/num_tokens"] == num_flat
    assert metrics["train/num_trained_tokens"] == num_flat - 10
    assert metrics["train/learning_rate"] == 1e-4 and metrics["train/num_updates"] == 1
    assert metrics["train/is_skipped"] == 0 and metrics["train/num_nonfinite_updates"] == 0
    assert metrics["train/por"] == 0 and metrics["train/grad_norm"] > 0
    parts = ("time/pack_s", "time/forward_backward_s", "time/optimizer_s")
    assert 0 < sum(metrics[part] for part in parts) <= metrics["time/step_s"]


def test_steps_on_groups_want_an_algorithm_with_advantages() -> None:
    with pytest.raises(ValueError, match="algorithm 'sft' makes no advantages of rewards: give"):
        Trainer(TinyModel(), "sft").step([])


def test_steps_on_groups_are_steps_on_their_rows() -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": 0.5}
    answers = {"a": [5, 6], "b": [5, 7, 8], "c": [9]}
    group = RolloutGroup(rollouts=[even_rollout(n, rewards[n], answers[n]) for n in rewards])
    trainer, other = (Trainer(tiny_qwen(), "grpo", args=FAST) for _ in range(2))
    found = trainer.step([group])
    rows = [  # the rewards' mean is 0.5 and their deviation 0.5
        Row([3, 4, *answers[n]], [0, 0] + [1] * len(answers[n]), [0, 0] + [-4.0] * len(answers[n]),
            (rewards[n] - 0.5) / (0.5 + 1e-6), group="g", rollout=n)
        for n in rewards
    ]  # fmt: skip
    wanted = other.step_rows(rows)
    assert found["train/num_rows"] == 3 and found["train/num_tokens"] == 7
    assert found["train/loss"] == pytest.approx(wanted["train/loss"], rel=1e-5)
    assert found["train/grad_norm"] == pytest.approx(wanted["train/grad_norm"], rel=1e-5)


def test_rows_that_share_nothing_learn_the_same() -> None:
    args = {**FAST, "max_tokens": 24, "optimizer": "muon"}
    shared, whole = (
        Trainer(tiny_qwen(), "grpo", args={**args, "should_share_prefixes": does})
        for does in (True, False)
    )
    rows = group_of_rows([1.0, -1.0, 1.0, -1.0])
    metrics = [trainer.step_rows(rows) for trainer in (shared, whole)]
    num_flat = sum(map(len, rows))
    assert [line["train/num_flat_tokens"] for line in metrics] == [num_flat, num_flat]
    assert metrics[0]["train/num_tokens"] < num_flat == metrics[1]["train/num_tokens"]
    assert metrics[0]["train/loss"] == pytest.approx(metrics[1]["train/loss"], abs=1e-6)
    assert metrics[0]["train/grad_norm"] == pytest.approx(metrics[1]["train/grad_norm"], rel=1e-4)
    for name, value in weights(shared.model).items():
        torch.testing.assert_close(value, weights(whole.model)[name], rtol=0, atol=1e-4)


def test_config_objects_and_mappings_are_the_same() -> None:
    one = Trainer(TinyModel(), "sft", args=TrainerConfig(learning_rate=0.5))
    assert one.config == Trainer(TinyModel(), "sft", args={"learning_rate": 0.5}).config
    assert Trainer(TinyModel(), "sft").config == TrainerConfig()


@pytest.mark.parametrize("name", some_of(["grpo", "dapo", "reinforce"], 2))
def test_groups_without_advantages_change_nothing_but_time(name: str) -> None:
    """The same weights come out whether they are computed (an option hides them) or not."""
    busy = group_of_rows([1.0, -0.5, -0.5])
    idle = group_of_rows([0.0, 0.0], name="idle", seed=1)
    args = {"learning_rate": 1e-3, "max_grad_norm": None, "epsilon": 1.0}  # AdamW: about linear
    quick, whole, alone = (Trainer(tiny_qwen(), name, args=args) for _ in range(3))
    # An advantage of next to nothing keeps the group in.
    kept = [row.replace(advantages=1e-30) for row in idle]
    found = quick.step_rows(busy + idle)
    wanted = whole.step_rows(busy + kept)
    other = alone.step_rows(busy)
    assert found["train/num_idle_rows"] == 2 and wanted["train/num_idle_rows"] == 0
    assert found["train/num_tokens"] == other["train/num_tokens"] < wanted["train/num_tokens"]
    for key in ("train/loss", "train/grad_norm"):
        assert found[key] == pytest.approx(wanted[key], rel=1e-4)
        assert other[key] > 1.2 * found[key] or other[key] < found[key] / 1.2
    for key, value in weights(quick.model).items():
        assert torch.allclose(value, weights(whole.model)[key], rtol=0, atol=1e-7), key


def test_nothing_to_train_is_told_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for name, rows in [
        ("sft", []),
        ("grpo", group_of_rows([0.0, 0.0])),
        ("grpo", [Row([3, 4], [1, 0], [0, 0], 1.0)]),
        ("sft", [Row([3, 4], [0, 1], weight=0.0)]),
    ]:
        with subtests.test(name=name, num_rows=len(rows)):
            caplog.clear()
            trainer = Trainer(tiny_qwen(), name, args=FAST)
            before = weights(trainer.model)
            metrics = trainer.step_rows(rows)
            assert metrics["train/is_skipped"] == 1 and metrics["train/num_updates"] == 0
            assert metrics["train/num_rows"] == len(rows)
            assert f"step 0: none of its {len(rows)} rows trains anything" in caplog.text
            assert same(weights(trainer.model), before) and trainer.num_steps == 1
            assert metrics.keys() <= METRICS.keys()


def test_a_gradient_that_is_not_finite_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(tiny_qwen(), "sft", args=FAST)
    trainer.step_rows(supervised())
    before = weights(trainer.model)
    handle = trainer.model.model.norm.weight.register_hook(lambda g: g * math.nan)
    metrics = trainer.step_rows(supervised())
    handle.remove()
    assert metrics["train/num_nonfinite_updates"] == 1 and metrics["train/is_skipped"] == 1
    assert math.isnan(metrics["train/grad_norm"])
    assert "step 1: the gradient's norm is nan; the update is left out" in caplog.text
    assert same(weights(trainer.model), before)
    metrics = trainer.step_rows(supervised())
    assert metrics["train/is_skipped"] == 0 and not same(weights(trainer.model), before)


def test_training_ends_after_too_many_updates_in_a_row_that_are_left_out() -> None:
    trainer = Trainer(tiny_qwen(), "sft", args={**FAST, "max_nonfinite_updates": 2})
    before = weights(trainer.model)
    weight = trainer.model.model.norm.weight
    for _ in range(2):  # one that is finite between them begins the count anew
        handle = weight.register_hook(lambda g: g * math.inf)
        trainer.step_rows(supervised())
        handle.remove()
        assert same(weights(trainer.model), before)
        trainer.step_rows(supervised())
        before = weights(trainer.model)
    weight.register_hook(lambda g: g * math.nan)
    trainer.step_rows(supervised())
    with pytest.raises(NonFiniteGradientError, match="not finite in 2 updates in a row; the wei"):
        trainer.step_rows(supervised())
    assert same(weights(trainer.model), before)
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())


def test_clipping_bounds_what_sgd_would_do() -> None:
    """With epsilon far above the gradient AdamW moves in proportion to it."""
    args = {"learning_rate": 1e6, "epsilon": 1e6, "beta1": 0.0}
    moved = []
    for max_norm in (None, 1e-3):
        trainer = Trainer(TinyModel(), "sft", args={**args, "max_grad_norm": max_norm})
        before = weights(trainer.model)
        metrics = trainer.step_rows([Row([1, 2, 3], [0, 1, 1])])
        norm = math.sqrt(
            sum(float((w - before[n]).square().sum()) for n, w in weights(trainer.model).items())
        )
        moved.append((metrics["train/grad_norm"], norm))
    (free, free_moved), (clipped, clipped_moved) = moved
    assert free == clipped > 1e-2  # told as it was before
    assert free_moved == pytest.approx(free, rel=1e-4)
    assert clipped_moved == pytest.approx(1e-3, rel=1e-3)


def test_updates_are_made_on_groups_one_after_another() -> None:
    rows = [
        row
        for seed in range(5)
        for row in group_of_rows([1.0, -1.0], name=f"group-{seed}", seed=seed)
    ]
    args = {"learning_rate": 1e-4, "num_updates": 3, "seed": 4}
    trainer, again = (Trainer(tiny_qwen(), "grpo", args=args) for _ in range(2))
    metrics = trainer.step_rows(rows)
    assert metrics["train/num_updates"] == 3 and trainer.num_steps == 1
    assert metrics["train/num_flat_tokens"] == sum(map(len, rows))
    again.step_rows(rows)
    assert same(weights(trainer.model), weights(again.model))
    one = Trainer(tiny_qwen(), "grpo", args={"learning_rate": 1e-4})
    one.step_rows(rows)
    assert not same(weights(trainer.model), weights(one.model))
    few = trainer.step_rows(rows[:4])  # of two groups
    assert few["train/num_updates"] == 2


class Recorder(TinyModel):
    """Knows the first token of every forest that it ran."""

    def hidden(self, forest: PackedForest, context: TreeContext) -> torch.Tensor:
        self.seen = [*getattr(self, "seen", []), int(forest.input_ids[0])]
        return super().hidden(forest, context)


def test_the_order_of_updates_is_another_each_step_and_with_each_seed() -> None:
    rows = [Row([i, 12], [0, 1]) for i in range(8)]
    orders = []
    for seed in (0, 0, 1):
        model = Recorder()
        trainer = Trainer(model, "sft", args={"num_updates": 8, "seed": seed})
        trainer.step_rows(rows)
        trainer.step_rows(rows)
        orders.append((tuple(model.seen[:8]), tuple(model.seen[8:])))
    assert orders[0] == orders[1] and len({*orders[0], *orders[2]}) == 4
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == list(range(8))


def test_the_schedule_sets_the_learning_rate_and_ends() -> None:
    args = {"learning_rate": 0.1, "schedule": "linear", "num_warmup_steps": 2, "num_steps": 4}
    trainer = Trainer(TinyModel(), "sft", args=args)
    rates = [trainer.step_rows([Row([1, 2], [0, 1])])["train/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])
    with pytest.raises(ValueError, match=r"the schedule ended at num_steps=4 with learning rate 0"):
        trainer.step_rows([Row([1, 2], [0, 1])])


def test_each_update_of_a_step_has_a_learning_rate_of_its_own() -> None:
    config = TrainerConfig(schedule="linear", num_warmup_steps=2, num_steps=6)
    rates = [
        schedule_factor(step, config, update=update, num_updates=4)
        for step in range(6)
        for update in range(4)
    ]
    assert rates[:8] == pytest.approx([(i + 1) / 8 for i in range(8)])
    assert rates[8:] == pytest.approx([1 - i / 16 for i in range(16)])
    args = {"learning_rate": 0.1, "schedule": "linear", "num_steps": 2, "num_updates": 2}
    trainer = Trainer(Recorder(), "sft", args=args)
    seen: list[float] = []
    set_rate = trainer._optimizer.set_learning_rate
    trainer._optimizer.set_learning_rate = lambda rate: (seen.append(rate), set_rate(rate))[1]  # type: ignore[method-assign]
    for _ in range(2):
        trainer.step_rows([Row([i, 12], [0, 1]) for i in range(4)])
    assert seen == pytest.approx([0.1, 0.075, 0.05, 0.025])


class Interrupted(TinyModel):
    """Raises on its second forest."""

    error: type[BaseException] = KeyboardInterrupt
    num_forests = 0

    def hidden(self, forest: PackedForest, context: TreeContext) -> torch.Tensor:
        self.num_forests += 1
        if self.num_forests == 2:
            raise self.error
        return super().hidden(forest, context)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_step_changes_nothing(error: type[BaseException]) -> None:
    model = Interrupted()
    model.error = error
    trainer = Trainer(model, "sft", args={"max_tokens": 3, "learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1]), Row([4, 5, 6], [0, 1, 1])]
    before = weights(model)
    with pytest.raises(error):
        trainer.step_rows(rows)
    assert same(weights(model), before) and trainer.num_steps == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    trainer.step_rows(rows)
    other = Trainer(TinyModel(), "sft", args={"max_tokens": 3, "learning_rate": 0.1})
    other.step_rows(rows)
    assert same(weights(model), weights(other.model))


def send_interrupt(*args: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_waits_for_weights_that_are_being_written() -> None:
    trainer = Trainer(TinyModel(), "sft", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1])]
    (part,) = trainer._optimizer.parts
    handle = part.register_step_pre_hook(send_interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.step_rows(rows)
    handle.remove()
    other = Trainer(TinyModel(), "sft", args={"learning_rate": 0.1})
    other.step_rows(rows)
    assert same(weights(trainer.model), weights(other.model)) and trainer.num_steps == 1


def fail(*args: object) -> None:
    raise MemoryError


def test_weights_that_were_half_written_are_not_gone_on_with(tmp_path: Any) -> None:
    trainer = Trainer(TinyModel(), "sft", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1])]
    trainer.step_rows(rows)
    trainer.save_checkpoint(tmp_path)
    (part,) = trainer._optimizer.parts
    handle = part.register_step_post_hook(fail)
    with pytest.raises(MemoryError):
        trainer.step_rows(rows)
    handle.remove()
    for call in (lambda: trainer.step_rows(rows), lambda: trainer.save_checkpoint(tmp_path)):
        with pytest.raises(RuntimeError, match="the weights are torn"):
            call()
    trainer.load_checkpoint(tmp_path)
    assert trainer.step_rows(rows)["train/num_updates"] == 1


def test_a_rehearsal_runs_what_a_step_runs(subtests: pytest.Subtests) -> None:
    """Two rows of 96 tokens that share 64: by how many tokens of a forest, how often a layer."""
    for args, wanted in (
        ({"max_tokens": 8192}, ([128], 1)),
        ({"max_tokens": 8192, "should_checkpoint_activations": True}, ([128], 2)),
        ({"max_tokens": 8192, "dtype": "bfloat16"}, ([128], 1)),
        ({"max_tokens": 40}, ([40], 1)),
        ({"max_tokens": 8192, "should_share_prefixes": False}, ([96, 96], 2)),
        # Whole, and in parts, of which those that others hang off run forward twice.
        ({"max_tokens": 8192, "should_split": True}, ([128, 32, 64, 32, 64, 32], 6)),
    ):
        with subtests.test(args=args):
            trainer = Trainer(tiny_qwen(), "grpo", args=args)
            tokens: list[int] = []
            dtypes: list[torch.dtype] = []
            decoder = trainer.model.model
            decoder.register_forward_pre_hook(
                lambda _, __, given, tokens=tokens: tokens.append(given["input_ids"].shape[1]),
                with_kwargs=True,
            )
            decoder.layers[1].mlp.register_forward_pre_hook(
                lambda _, given, dtypes=dtypes: dtypes.append(given[0].dtype)
            )
            trainer.rehearse()
            assert (tokens, len(dtypes)) == wanted
            assert {str(dtype) for dtype in dtypes} == {f"torch.{trainer.config.dtype}"}


def test_a_rehearsal_changes_nothing_and_raises_what_a_step_would(
    subtests: pytest.Subtests,
) -> None:
    for name in sorted(ALGORITHMS):
        with subtests.test(name=name):
            options = {"max_completion_tokens": 9} if name == "dr_grpo" else {}
            trainer = Trainer(tiny_qwen(), name, args={**FAST, "loss": options})
            trainer.rehearse()
            assert all(p.grad is None for p in trainer.model.parameters())
            assert same(weights(trainer.model), weights(tiny_qwen())) and trainer.num_steps == 0
    for backend, words in [("flex", "no backward on the CPU"), ("flax", "unknown backend 'flax'")]:
        with subtests.test(backend=backend), pytest.raises(ValueError, match=words):
            Trainer(tiny_qwen(), "grpo", args={"backend": backend}).rehearse()
