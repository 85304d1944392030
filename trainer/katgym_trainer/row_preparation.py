"""Preparation of a step's rows: teachers, log-probs, entropies, scales, pruning.

Not here: the formulas (`entropy_scaling.py`, `tree_pruning.py`), log-probs that a loss needs
(`known_logprobs.py`).

Letters: G rollouts of one group, T tokens of one row.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from katgym_trainer.advantages.distillation import Distillation, Teacher
from katgym_trainer.advantages.entropy_scaling import (
    entropy_of_rollout,
    entropy_scaled,
    pass_rate_scaled,
)
from katgym_trainer.gradients.forward_backward import trainer_entropies
from katgym_trainer.logprobs.known_logprobs import KnownLogprobs
from katgym_trainer.minibatches import busy_places, is_trained
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.pruning.tree_pruning import prune
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.row import Floats, Row
from katgym_trainer.trainer_config import TrainerConfig


class Preparation:
    """What a trainer makes of the rows of a step before its first update."""

    def __init__(
        self,
        model: TreeModel,
        config: TrainerConfig,
        known: KnownLogprobs,
        *,
        has_idle_groups: bool,
        shares: Shares,
        teachers: Sequence[Teacher] = (),
    ) -> None:
        """has_idle_groups: groups without an advantage are not computed: nothing is worked out of
        them, and none of pruning's budget is spent on them."""
        self._model = model
        self.has_idle_groups = has_idle_groups
        self._config = config
        self._known = known
        self._shares = shares
        self._distillation = Distillation(teachers, known)

    def rows(self, rows: Sequence[Row], *, num_steps: int) -> tuple[list[Row], dict[str, float]]:
        """Return rows taught, scaled, pruned and with the log-probs of the loss; and metrics.

        num_steps: made so far, which draws of pruning depend on.
        """
        if not self._config.should_share_prefixes:
            rows = [row.replace(context=(row.context, i)) for i, row in enumerate(rows)]
        rows, metrics = self._distillation.rows(rows)
        places = busy_places(rows) if self.has_idle_groups else list(range(len(rows)))
        found = [rows[place] for place in places]
        if not is_trained(found):
            return list(rows), metrics
        others = set(range(len(rows))) - set(places)
        config = self._config
        if config.advantage_scaling == "entropy" or config.max_unique_tokens is not None:
            entropies = row_entropies(
                self._model,
                found,
                max_tokens=config.max_tokens,
                backend=config.backend,
                temperature=config.temperature,
                shares=self._shares,
            )
            if config.advantage_scaling == "entropy":
                found = scale_by_entropy(
                    found, entropies, power=config.scaling_power, max_scale=config.max_scale
                )
            if config.max_unique_tokens is not None:
                is_drawn = config.pruning == "sample"
                pruned = prune(
                    found,
                    entropies,
                    max_tokens=config.max_unique_tokens,
                    mode=config.pruning,
                    seed=config.seed * _MAX_STEPS + num_steps if is_drawn else None,
                )
                found, places = pruned.rows, [places[i] for i in pruned.places]
                for name in ("kept_tokens", "kept_trained", "kept_advantage_entropy"):
                    metrics[f"train/{name}"] = getattr(pruned.stats, name)
        found = self._known.of(found, num_steps=num_steps)
        stats = self._known.cache.stats
        if stats.num_hits + stats.num_misses:
            metrics["train/logprob_hit_rate"] = stats.hit_rate
        left = {**dict(zip(places, found, strict=True)), **{i: rows[i] for i in others}}
        return [left[place] for place in sorted(left)], metrics

    def weights_changed(self) -> None:
        """Forget what was computed with the trainer's weights: they are a checkpoint's."""
        self._known.weights_changed()

    def close(self) -> None:
        """Close the cache of log-probs; may be called twice."""
        self._known.cache.close()


_MAX_STEPS = 2**32
"""Draws of one seed's steps are not those of another's."""


def row_entropies(
    model: torch.nn.Module | TreeModel,
    rows: Sequence[Row],
    *,
    max_tokens: int,
    backend: str = "auto",
    temperature: float = 1.0,
    shares: Shares | None = None,
) -> list[Floats]:
    """Return the entropy, in nats, of what predicts each trained token of each row: [T], else 0.

    Of the model as it is, over its whole vocabulary, at the temperature. Arguments are those of
    `pack` and `forward_backward`. shares: which ranks compute which rows; they have them all.
    """
    shares = shares or Shares()
    compute = functools.partial(
        trainer_entropies, model, backend=backend, temperature=temperature, ranks=shares.ranks
    )
    found = shares.of_rows(rows, compute, max_tokens=max_tokens)
    return [row.spread(found[place]) for place, row in enumerate(rows)]


def scale_by_entropy(
    rows: Sequence[Row],
    entropies: Sequence[Floats],
    *,
    power: float = 1.0,
    max_scale: float = 2.0,
) -> list[Row]:
    """Return rows with the advantages of each group's rollouts scaled by `entropy_scaled`.

    entropies: of each row, [T], from `row_entropies`.

    All of a rollout's rows get one factor; its size in the group is the mean size of its tokens'
    advantages. Rows without a group are one group, those without a rollout a rollout each.
    """
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for place, row in enumerate(rows):
        if row.num_trained:
            rollout = ("row", place) if row.rollout is None else ("rollout", row.rollout)
            groups.setdefault(row.group, {}).setdefault(rollout, []).append(place)
    found = list(rows)
    for rollouts in groups.values():
        sizes_G = [_mean_size([rows[place] for place in places]) for places in rollouts.values()]
        entropies_G = [
            entropy_of_rollout(
                [rows[place] for place in places], [entropies[place] for place in places]
            )
            for places in rollouts.values()
        ]
        scaled_G = entropy_scaled(sizes_G, entropies_G, power=power, max_scale=max_scale)
        for places, size, scaled in zip(rollouts.values(), sizes_G, scaled_G, strict=True):
            for place in places if size else ():
                found[place] = _times(rows[place], float(scaled) / size)
    return found


def scale_by_pass_rate(
    rows: Sequence[Row], pass_rates: Mapping[Hashable, float], *, max_scale: float = 2.0
) -> list[Row]:
    """Return rows with the advantages of each group scaled by `pass_rate_scaled`.

    pass_rates: of each group, by its name; `ValueError` for a row whose group has none.
    """
    places: dict[Hashable, list[int]] = {}
    for place, row in enumerate(rows):
        if row.group not in pass_rates:
            raise ValueError(f"row {place} is of group {row.group!r}, which has no pass rate")
        if row.num_trained:
            places.setdefault(row.group, []).append(place)
    if not places:
        return list(rows)
    sizes = [[_mean_size([rows[place]]) for place in members] for members in places.values()]
    scaled = pass_rate_scaled(sizes, [pass_rates[group] for group in places], max_scale=max_scale)
    found = list(rows)
    for members, before, after in zip(places.values(), sizes, scaled, strict=True):
        for place, size, new in zip(members, before, after, strict=True):
            if size:
                found[place] = _times(rows[place], float(new) / size)
    return found


def _mean_size(rows: Sequence[Row]) -> float:
    """Return the mean of |advantage| over the rows' trained tokens."""
    sizes = [np.abs(row.advantages[row.trained]) for row in rows]
    return float(np.concatenate(sizes).mean())


def _times(row: Row, factor: float) -> Row:
    return row.replace(advantages=row.advantages * factor)
