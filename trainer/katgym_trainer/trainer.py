"""The trainer: a model, an algorithm, and steps that change the weights.

    trainer = Trainer("Qwen/Qwen3-0.6B", "dapo", args={"learning_rate": 1e-6})
    metrics = trainer.step(groups)
    trainer.save_checkpoint("checkpoints", cursor={"epoch": 0})

Not here: rollouts and loops around steps (`katgym`), the gradient (`forward_backward.py`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from katgym.errors import UsageError
from katgym_trainer.advantages.distillation import Teacher
from katgym_trainer.algorithms import resolve_algorithm
from katgym_trainer.gradients.forward_backward import as_tree_model, forward_backward
from katgym_trainer.logprobs.known_logprobs import KnownLogprobs
from katgym_trainer.losses.objective import Coupling
from katgym_trainer.minibatches import busy_places, is_trained, share, split_groups
from katgym_trainer.models.preparation import DTYPES, load_and_prepare, vocabulary_names
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.optimization.master_weights import MasterWeights
from katgym_trainer.optimization.norm_watch import NormWatch
from katgym_trainer.optimization.optimizers import clip_gradients, make_optimizer, schedule_factor
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.row import Row
from katgym_trainer.row_preparation import Preparation, scale_by_pass_rate
from katgym_trainer.saving import checkpoints
from katgym_trainer.saving.checkpoints import Checkpoint, CheckpointError
from katgym_trainer.saving.interrupts import hold_interrupts
from katgym_trainer.saving.sharded_files import pieces_like
from katgym_trainer.saving.trainer_state import (
    check_fits,
    frozen_sha256,
    random_states,
    set_random_states,
)
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.trainer_metrics import combine

if TYPE_CHECKING:
    from katgym.play.rollout import RolloutGroup
    from katgym_trainer.rollouts.rollout_rows import Shaping
    from katgym_trainer.rollouts.turn_errors import ErrorMasks

logger = logging.getLogger(__name__)

_MAX_REHEARSED = 128
"""Tokens of a rehearsal's forest: half of them shared, more than what any branch needs to pay."""


class Trainer:
    """Trains one model; not for several threads at once.

    Example:
        trainer = Trainer(model, "grpo", args=TrainerConfig(learning_rate=1e-6))
        print(trainer.step_rows(rows)["train/loss"])
    """

    def __init__(
        self,
        model: torch.nn.Module | str | Path,
        algorithm: str = "grpo",
        *,
        args: TrainerConfig | Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        reference: torch.nn.Module | None = None,
        teachers: Sequence[Teacher] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        """Make the model ready, in place, and an optimizer for those weights that need gradients.

        model: of transformers, with peft's adapters or without; a folder or a hub id of one; or a
            `TreeModel` that is a `torch.nn.Module`.
        algorithm: of `katgym_trainer.algorithms.ALGORITHMS`.
        args: settings by name, or the config; None: its defaults.
        tokenizer: `save_pretrained` writes it; None: that of a model given by name.
        reference: what a KL term or a preference compares with, where rows have no ref_logprobs;
            None: the model without its adapters, if there are any.
        teachers: judge each sampled token (`distillation.py`).
        ranks: the processes that train it together, each with the same model and arguments. They
            all call the same methods with the same rows, and each computes its share.

        Raises `ValueError` for settings that do not go together, and for models whose results on a
        forest would not be exact.
        """
        config = args if isinstance(args, TrainerConfig) else TrainerConfig.of(args or {})
        self.config = config
        self.algorithm_name = algorithm
        self.algorithm, self.loss = resolve_algorithm(
            algorithm, config, has_teachers=bool(teachers)
        )
        self.model, found = load_and_prepare(model, config, ranks=ranks)
        self.tokenizer = found if tokenizer is None else tokenizer
        self.num_steps = 0
        """Calls of `step` and `step_rows` that ended, those with nothing to train among them."""
        self._tree_model = as_tree_model(self.model, ranks=ranks)
        self._shares = shares = Shares.of(ranks, self._tree_model)
        models = (self.model, self._tree_model)
        known = KnownLogprobs(*models, self.loss, config, reference=reference, shares=shares)
        self._masters = MasterWeights(
            ((name, p) for name, p in self.model.named_parameters() if p.requires_grad),
            is_kept=config.rounding == "nearest",
        )
        self._optimizer = make_optimizer(
            self._masters.named(),
            config,
            vocabulary=vocabulary_names(self.model, self._tree_model.head().weight_VD),
        )
        idle = self.algorithm.advantage is not None and not self.loss.has_other_terms
        self._preparation = Preparation(
            self._tree_model, config, known, has_idle_groups=idle, shares=shares, teachers=teachers
        )
        self._is_torn = False
        self._watch = NormWatch(config.max_nonfinite_updates)

    def step(
        self,
        groups: Sequence[RolloutGroup],
        *,
        masks: ErrorMasks | None = None,
        shaping: Shaping | None = None,
    ) -> dict[str, float]:
        """Train on groups of rollouts, with the algorithm's advantages; return metrics.

        masks, shaping: see `group_rows`.
        """
        return self.step_rows(self.rows_of(groups, masks=masks, shaping=shaping), is_scaled=True)

    def rows_of(
        self,
        groups: Sequence[RolloutGroup],
        *,
        masks: ErrorMasks | None = None,
        shaping: Shaping | None = None,
        oldest_version: int = 0,
    ) -> list[Row]:
        """Return the rows of groups that `step` trains on, with the algorithm's advantages.

        masks, shaping, oldest_version: see `group_rows`.
        """
        if self.algorithm.advantage is None:
            raise UsageError(
                f"algorithm {self.algorithm_name!r} makes no advantages of rewards: give step_rows"
                " rows (of supervised_rows, with_gae or preference_rows)"
            )
        from katgym_trainer.rollouts import rollout_rows  # needs what records rollouts
        from katgym_trainer.rollouts.turn_errors import NO_MASKS

        how: dict[str, Any] = {"masks": masks or NO_MASKS, "shaping": shaping}
        rows = rollout_rows.group_rows(
            groups, self.algorithm.advantage, oldest_version=oldest_version, **how
        )
        if self.config.advantage_scaling == "pass_rate":
            rates = rollout_rows.pass_rates(groups)
            rows = scale_by_pass_rate(rows, rates, max_scale=self.config.max_scale)
        return rows

    def step_rows(self, rows: Sequence[Row], *, is_scaled: bool = False) -> dict[str, float]:
        """Train on rows and return metrics, by the names of `METRICS`.

        is_scaled: `rows_of` has scaled them by pass rates, where that is asked for.

        Groups in which no token has an advantage are not computed, and count in every mean, where
        the loss has no term but the advantage's. An update whose gradient is not finite is left
        out; `NonFiniteGradientError` after `max_nonfinite_updates` in a row.

        Interrupted, or failed, in its forward or backward, an update changes nothing; of
        `num_updates` those that were made before stay. Ctrl-C waits for weights that are being
        written.
        """
        if self.config.advantage_scaling == "pass_rate" and not is_scaled:
            raise UsageError(
                "advantage_scaling='pass_rate' needs the groups' rewards: call step, or"
                " scale_by_pass_rate on the rows"
            )
        return self._step(rows)

    def _step(self, given: Sequence[Row]) -> dict[str, float]:
        self._check_whole()
        started = time.perf_counter()
        learning_rate = schedule_factor(self.num_steps, self.config) * self.config.learning_rate
        if not learning_rate:
            raise UsageError(
                f"the schedule ended at num_steps={self.config.num_steps!r} with learning rate 0,"
                f" and {self.num_steps} steps are done: nothing would change"
            )
        rows, prepared = self._preparation.rows(given, num_steps=self.num_steps)
        prepared["time/prepare_s"] = time.perf_counter() - started
        rng = np.random.default_rng([self.config.seed, self.num_steps])
        parts = split_groups(rows, self.config.num_updates, rng=rng)
        has_idle = self._preparation.has_idle_groups
        busy = [[part[i] for i in busy_places(part)] if has_idle else part for part in parts]
        self._masters.reseed(self.config.seed, self.num_steps)
        pairs = [(some, part) for some, part in zip(busy, parts, strict=True) if is_trained(some)]
        updates = []
        for number, (some, part) in enumerate(pairs):
            factor = share(some, part, self.loss.normaliser)
            schedule = schedule_factor(
                self.num_steps, self.config, update=number, num_updates=len(pairs)
            )
            learning_rate = schedule * self.config.learning_rate
            self._optimizer.set_learning_rate(learning_rate)
            updates.append(self._update(some, factor, is_last=number == len(pairs) - 1))
        if not pairs:
            logger.warning(
                "step %d: none of its %d rows trains anything", self.num_steps, len(given)
            )
            self.num_steps += 1
        num_updates = sum(update["num_updates"] for update in updates)
        return {
            **combine(updates),
            **prepared,
            "train/learning_rate": learning_rate,
            "train/num_updates": num_updates,
            "train/is_skipped": float(not num_updates),
            "train/num_rows": len(given),
            "train/num_idle_rows": len(rows) - sum(map(len, busy)),
            "time/step_s": time.perf_counter() - started,
        }

    def rehearse(self) -> None:
        """Compute a gradient of two rows that branch and throw it away.

        Raises what a step would: for a backend that is not there or has no backward here, a
        compiler that fails, weights that are too many. The rows are short; all else is as in a
        step: the model's dtype, adapters, checkpointed and compiled layers, shared prefixes, and
        forests in parts where `should_split` may make some.
        """
        config = self.config
        num_tokens = max(4, min(_MAX_REHEARSED, config.max_tokens))
        num_shared, num_own = num_tokens // 2, num_tokens // 4
        num = num_shared + num_own
        zeros = [0.0] * num
        rows = [
            Row(
                [0] * num_shared + [token] * num_own, [0] * (num - 2) + [1, 1], zeros,
                1.0 - 2.0 * token, group="rehearsal", proximal_logprobs=zeros, ref_logprobs=zeros,
                context=None if config.should_share_prefixes else token,
            )
            for token in (0, 1)
        ]  # fmt: skip
        limits = (num_tokens, num_shared) if config.should_split else (num_tokens,)
        try:
            with torch.random.fork_rng():
                forests = [
                    forest
                    for limit in limits
                    for forest in self._shares.pack(
                        rows, is_by_group=True, max_tokens=limit, should_split=config.should_split
                    )
                ]
                self._backward(forests)
        finally:
            self._masters.clear_gradients()

    def save_pretrained(self, path: str | Path, *, is_merged: bool = True) -> None:
        """Write the model as a folder that `from_pretrained` loads, with its tokenizer if known.

        is_merged: add adapters to the weights; False writes the adapters alone, for peft.

        All of the folder is written, or nothing. Raises `UsageError` for a folder that is not
        empty, and for a `TreeModel`, which has no such format.
        """
        self._check_whole()
        if isinstance(self.model, TreeModel):
            raise UsageError(
                f"{type(self.model).__name__} is not a model of transformers; save_checkpoint keeps"
                " its weights"
            )
        from katgym_trainer.models.pretrained import save_model  # imports transformers

        options: Any = {"ranks": self._shares.ranks, "dtype": DTYPES[self.config.dtype]}
        save_model(self.model, self.tokenizer, Path(path), is_merged=is_merged, **options)

    def save_checkpoint(
        self, folder: str | Path, cursor: Any = None, *, max_checkpoints: int | None = None
    ) -> Path:
        """Write all that the next step depends on as `folder/step-{num_steps}`; return that.

        cursor: JSON values of the caller's own: where it is in its data.
        max_checkpoints: how many of the newest in the folder to keep; None: all.

        The folder appears whole or not at all. Weights that are not trained are not in it.
        """
        self._check_whole()
        checkpoint = Checkpoint(
            weights=self._masters.weights(),
            optimizer=self._optimizer.state_dict(),
            random=random_states(),
            state={**self._state(), "num_steps": self.num_steps, "cursor": cursor},
        )
        ranks = self._shares.ranks
        return checkpoints.save(
            checkpoint, Path(folder), max_checkpoints=max_checkpoints, ranks=ranks
        )

    def load_checkpoint(self, folder: str | Path) -> Any:
        """Go on from a checkpoint, and return its cursor.

        folder: a checkpoint, or a folder of them, whose latest is taken. torch's global generators
        are set as well: on the CPU the next step is, bit for bit, what would have followed. Raises
        `CheckpointError` for one that is damaged, or of another model; then nothing has changed.
        """
        ranks = self._shares.ranks
        weights = self._masters.weights()
        path = ranks.on_first(lambda: checkpoints.choose(Path(folder)))
        found = checkpoints.load(path, ranks=ranks, like=pieces_like(weights, ranks))
        check_fits(path, found, self._state(), weights)
        try:
            self._optimizer.check_state_dict(found.optimizer)
        except ValueError as e:
            raise CheckpointError(f"checkpoint {str(path)!r} does not fit: {e}") from e
        self._is_torn = True
        self._masters.load(found.weights)
        self._optimizer.load_state_dict(found.optimizer)
        set_random_states(found.random)
        self.num_steps = int(found.state["num_steps"])
        self._preparation.weights_changed()
        self._is_torn = False
        return found.state["cursor"]

    def close(self) -> None:
        """Let go of the model, for another trainer to take; may be called twice."""
        self._masters.close()
        self._preparation.close()

    def _update(self, rows: Sequence[Row], factor: float, *, is_last: bool) -> dict[str, float]:
        """Compute the gradient of some rows, times a factor, and change the weights by it."""
        config = self.config
        times = [time.perf_counter()]
        ranks = self._shares.ranks
        forests = self._pack(rows)
        times.append(time.perf_counter())
        self._masters.clear_gradients()
        try:
            metrics = self._backward(forests)
            times.append(time.perf_counter())
            if factor * ranks.num != 1:  # those of ranks are means over them
                self._masters.scale_gradients(factor * ranks.num)
            norm = clip_gradients((p for _, p in self._masters.named()), config.max_grad_norm)
            self._watch.check(norm, self.num_steps)
            with hold_interrupts():
                if math.isfinite(norm):
                    self._is_torn = True
                    self._optimizer.step(self._masters)
                    self._is_torn = False
                self.num_steps += is_last
        finally:
            self._masters.clear_gradients()
        times.append(time.perf_counter())
        if ranks.num > 1:
            metrics["rank_balance"] = self._shares.balance(forests)
        return {
            **metrics,
            "loss": metrics["loss"] * factor,
            "grad_norm": norm,
            "num_updates": float(math.isfinite(norm)),
            "num_nonfinite_updates": float(not math.isfinite(norm)),
            "time/pack_s": times[1] - times[0],
            "time/forward_backward_s": times[2] - times[1],
            "time/optimizer_s": times[3] - times[2],
        }

    def _pack(self, rows: Sequence[Row]) -> list[PackedForest]:
        names = ("max_tokens", "max_pairs", "max_trained", "should_split")
        budget = {name: getattr(self.config, name) for name in names}
        is_by_group = self.loss.coupling is Coupling.GROUP
        return self._shares.pack(rows, is_by_group=is_by_group, **budget)

    def _backward(self, forests: Sequence[PackedForest]) -> dict[str, float]:
        with self._training():
            return forward_backward(
                self._tree_model,
                forests,
                self.loss,
                backend=self.config.backend,
                temperature=self.config.temperature,
                ranks=self._shares.ranks,
            )

    def _state(self) -> dict[str, Any]:
        """Return what a checkpoint is compared by."""
        return {
            "algorithm": self.algorithm_name,
            "config": self.config.to_json(),
            "frozen_sha256": frozen_sha256(self.model),
        }

    def _check_whole(self) -> None:
        if self._is_torn:
            raise RuntimeError(
                "the weights are torn: changing them failed half way; load a checkpoint"
            )

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        """Put the model in training mode, without which activation checkpointing does nothing."""
        before = self.model.training
        self.model.train()
        try:
            yield
        finally:
            self.model.train(before)
