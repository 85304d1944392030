"""Advantages scaled by how much was explored: by a rollout's entropy, by a group's pass rate.

Both multiply each advantage by a positive factor and leave the sum of sizes as it was, so neither a
sign nor the length of a step changes: only which rollouts it listens to. The factors are constants,
no gradient goes through them. KAT-Dev-72B-Exp names both forms and publishes no formula; these are
katgym's. Not here: advantages from rewards (`group_advantages.py`).

Letters: G rollouts of one group (or of a whole batch), T tokens of one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from katgym_trainer.config.rules import AtLeastOne, NotNegative, check_value
from katgym_trainer.row import Bools, Floats, Ints, Row

_LEAST_ENTROPY = -1e-3
"""Entropies of nearly certain tokens round to a hair below 0; they count as 0."""


def entropy_scaled(
    advantages_G: Sequence[float] | Floats,
    entropies_G: Sequence[float] | Floats,
    *,
    power: float = 1.0,
    max_scale: float = 2.0,
    is_valid_G: Sequence[bool] | Bools | None = None,
) -> Floats:
    """Return the advantages, larger where the policy was less certain than the others' mean.

        scale = clip((entropies / mean(entropies)) ** power, 1 / max_scale, max_scale)
        advantages * scale * sum(abs(advantages)) / sum(scale * abs(advantages))

    entropies_G: of each rollout, from `entropy_of_rollout`; all exact or all estimated.
    power: at least 0; 0 leaves everything as it is.
    max_scale: at least 1, before sizes are brought back to their sum; afterwards a factor lies
        within `max_scale ** 2` and its inverse.
    is_valid_G: false for rollouts that count for nothing and get 0; None: all are valid.

    Advantages that are all 0 stay so. Entropies that are all 0 tell nothing apart: the advantages
    come back as they were. So do those of a single valid rollout.
    """
    check_value("power", power, NotNegative)
    check_value("max_scale", max_scale, AtLeastOne)
    advantages, entropies, valid = _check_group(advantages_G, entropies_G, is_valid_G)
    found = np.zeros(len(advantages))
    if valid.any():
        relative = _relative(np.maximum(entropies[valid], 0.0))
        with np.errstate(over="ignore"):  # clipped
            scale = np.clip(relative**power, 1 / max_scale, max_scale)
        found[valid] = _scale(advantages[valid], scale)
    return found


def pass_rate_scaled(
    advantages_by_group: Sequence[Sequence[float] | Floats],
    pass_rates: Sequence[float] | Floats,
    *,
    max_scale: float = 2.0,
) -> list[Floats]:
    """Return each group's advantages, larger for tasks that are solved about every other time.

        outcome = 4 * p * (1 - p)  # variance of passing, 1 at p = 1/2
        scale = clip(outcome / mean(outcome), 1 / max_scale, max_scale)  # of each group
        advantages * scale * sum(abs(advantages)) / sum(scale * abs(advantages))  # over all groups

    advantages_by_group: 0 for rollouts that are not valid.
    pass_rates: p of each group, 0 to 1.
    max_scale: as in `entropy_scaled`.

    Where no group's outcome varies, or no advantage differs from 0, all come back as they were.
    """
    check_value("max_scale", max_scale, AtLeastOne)
    groups = [np.array(group, dtype=np.float64) for group in advantages_by_group]
    if not groups:
        raise ValueError("there are no groups to scale")
    rates = np.array(pass_rates, dtype=np.float64)
    if rates.shape != (len(groups),):
        raise ValueError(f"pass_rates has shape {rates.shape}, there are {len(groups)} groups")
    for g, (rate, group) in enumerate(zip(rates.tolist(), groups, strict=True)):
        if not 0 <= rate <= 1:
            raise ValueError(f"pass_rates[{g}] is {rate!r}, allowed is 0 to 1")
        if group.ndim != 1 or not len(group):
            raise ValueError(f"group {g} has advantages of shape {group.shape}, not one a rollout")
        _check(f"advantages_by_group[{g}]", group, np.arange(len(group)), least=-math.inf)
    scale = np.clip(_relative(4 * rates * (1 - rates)), 1 / max_scale, max_scale)
    sizes = [len(group) for group in groups]
    scaled = _scale(np.concatenate(groups), np.repeat(scale, sizes))
    return np.split(scaled, np.cumsum(sizes)[:-1])


def entropy_of_rollout(rows: Sequence[Row], entropies: Sequence[Sequence[float] | Floats]) -> float:
    """Return the mean entropy, in nats, of what was sampled: every row's trained tokens.

    rows: of one rollout; a token that two of them train counts twice.
    entropies: of each row, [T]: entry t is the entropy of the distribution that predicts token t,
        computed over the whole vocabulary; looked at on trained tokens alone.

    Raises `ValueError` where nothing is trained: there is no mean, and such a rollout is best left
    out of the valid ones.
    """
    known = entropies_of_trained(rows, entropies)
    return _mean([found[row.trained] for row, found in zip(rows, known, strict=True)])


def estimate_entropy_of_rollout(rows: Sequence[Row]) -> float:
    """Return an estimate of `entropy_of_rollout` from the sampler's log-probs alone.

        -mean(policy_logprobs)  # over trained tokens, never below 0

    Each term's expectation is the entropy of the distribution that the token was drawn from, so it
    is unbiased if the log-probs are those of that very distribution: at the sampling temperature,
    after any truncation (top-p, top-k). Log-probs at temperature 1 of tokens that were sampled at
    another estimate a cross-entropy instead.
    """
    found = []
    for place, row in enumerate(rows):
        if row.policy_logprobs is None:
            raise ValueError(f"rows[{place}] has no policy_logprobs to estimate an entropy from")
        found.append(-row.policy_logprobs[row.trained])
    return _mean(found)


def entropies_of_trained(
    rows: Sequence[Row], entropies: Sequence[Sequence[float] | Floats]
) -> list[Floats]:
    """Return checked entropies of each row, [T]: 0 where a token is not trained, never below 0.

    Raises `ValueError` for lengths that differ and for entropies of trained tokens that are none.
    """
    if len(entropies) != len(rows):
        raise ValueError(f"entropies of {len(entropies)} rows, there are {len(rows)} rows")
    found = []
    for place, (row, values) in enumerate(zip(rows, entropies, strict=True)):
        array = np.array(values, dtype=np.float64)
        if array.shape != (len(row),):
            raise ValueError(
                f"entropies[{place}] has shape {array.shape}, its row has {len(row)} tokens"
            )
        _check(f"entropies[{place}]", array, row.trained, least=_LEAST_ENTROPY)
        found.append(row.spread(np.maximum(array[row.trained], 0.0)))
    return found


def _check_group(
    advantages_G: Sequence[float] | Floats,
    entropies_G: Sequence[float] | Floats,
    is_valid_G: Sequence[bool] | Bools | None,
) -> tuple[Floats, Floats, Bools]:
    advantages = np.array(advantages_G, dtype=np.float64)
    if advantages.ndim != 1 or not len(advantages):
        raise ValueError(f"a group has one advantage for each rollout, got {advantages.shape}")
    num = len(advantages)
    valid = np.ones(num, dtype=bool) if is_valid_G is None else np.array(is_valid_G, dtype=bool)
    entropies = np.array(entropies_G, dtype=np.float64)
    for name, array in (("entropies_G", entropies), ("is_valid_G", valid)):
        if array.shape != (num,):
            raise ValueError(f"{name} has shape {array.shape}, there are {num} advantages")
    _check("advantages_G", advantages, np.flatnonzero(valid), least=-math.inf)
    _check("entropies_G", entropies, np.flatnonzero(valid), least=_LEAST_ENTROPY)
    return advantages, entropies, valid


def _mean(values: Sequence[Floats]) -> float:
    together = np.concatenate([np.zeros(0), *values])
    if not len(together):
        raise ValueError("the rollout trains no token: there is no entropy, leave it out")
    return max(0.0, float(together.mean()))


def _relative(values: Floats) -> Floats:
    """Return values over their mean; ones where all are 0."""
    if not values.any():
        return np.ones_like(values)
    shares = values / values.max()  # a mean of tiny numbers would be 0
    relative: Floats = shares / shares.mean()
    return relative


def _scale(advantages: Floats, scale: Floats) -> Floats:
    """Return advantages times their scale, with sizes that sum to what they did."""
    sizes = np.abs(advantages)
    if not sizes.any():
        return advantages
    shares = sizes / sizes.max()
    scaled: Floats = advantages * (scale * (shares.sum() / (scale * shares).sum()))
    return scaled


def _check(name: str, values: Floats, chosen: Ints, *, least: float) -> None:
    """Raise for a value at one of some places that is no number or too small."""
    bad = chosen[~(np.isfinite(values[chosen]) & (values[chosen] >= least))]
    if len(bad):
        i = int(bad[0])
        allowed = "finite numbers" if least == -math.inf else "finite numbers >= 0"
        raise ValueError(f"{name}[{i}] is {values[i].item()!r}, allowed are {allowed}")
