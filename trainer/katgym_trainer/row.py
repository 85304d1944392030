"""One row of training data: the tokens of one exact model call or of one append-only trajectory.

Not here: how rows share prefixes (`token_trie.py`), losses.

Letters: T tokens of one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Row:
    """Entry t of every list speaks of token t given those before it; entry 0 is never trained.

    The arrays cannot be written.

    Example:
        Row([5, 6, 7], [0, 1, 1], policy_logprobs=[0.0, -0.1, -2.3], advantages=0.5, group="task-1")
    """

    token_ids: Ints
    loss_mask: Bools
    policy_logprobs: Floats | None
    advantages: Floats
    weight: Floats
    group: Hashable
    rollout: Hashable
    context: Hashable
    extras: Ints | None
    proximal_logprobs: Floats | None
    ref_logprobs: Floats | None
    values: Floats | None
    returns: Floats | None
    is_kept: Bools | None

    def __init__(
        self,
        token_ids: Sequence[int] | Ints,
        loss_mask: Sequence[int] | Sequence[bool] | Bools | Ints,
        policy_logprobs: Sequence[float] | Floats | None = None,
        advantages: float | Sequence[float] | Floats = 0.0,
        weight: float | Sequence[float] | Floats = 1.0,
        group: Hashable = None,
        *,
        rollout: Hashable = None,
        context: Hashable = None,
        extras: Sequence[int] | Ints | None = None,
        proximal_logprobs: Sequence[float] | Floats | None = None,
        ref_logprobs: Sequence[float] | Floats | None = None,
        values: Sequence[float] | Floats | None = None,
        returns: Sequence[float] | Floats | None = None,
        is_kept: Sequence[bool] | Bools | None = None,
    ) -> None:
        """Check and keep, numbers on trained tokens alone; `ValueError` names what does not fit.

        loss_mask: true (1) on trained tokens.
        policy_logprobs: of each token when it was sampled; None: not known, which off-policy losses
            refuse.
        advantages: a number for the row, or one for each token.
        weight: in the loss, at least 0: a number for the row, or one for each token.
        group: rows of one group come from one task.
        rollout: rows of one rollout count once in statistics; None: a rollout of its own.
        context: what else changes the forward of the whole row (an adapter, an image): rows of
            different contexts share nothing.
        extras: what else changes the forward of each token (expert routes), as a number: tokens of
            different extras are different tokens. None is 0 for each.
        proximal_logprobs: of each token under the trainer's weights before the step, for losses
            that tell their own ratio from the sampler's mismatch.
        ref_logprobs: of each token under the reference model that a KL term keeps close to.
        values: of a critic before each token, as they were when advantages were computed.
        returns: what the critic should have said before each token.
        is_kept: true on tokens of events (tool calls, memory) that pruning leaves in; None: none.
        """
        tokens = _tokens(token_ids)
        num = len(tokens)
        mask = _mask("loss_mask", loss_mask, num)
        trained = np.flatnonzero(mask[1:]) + 1
        arrays: dict[str, Ints | Floats | Bools | None] = {
            "token_ids": tokens,
            "loss_mask": mask,
            "policy_logprobs": _logprobs("policy_logprobs", policy_logprobs, num, trained),
            "advantages": _per_token("advantages", advantages, num, trained),
            "weight": _weight(weight, num, trained),
            "extras": None if extras is None else _extras(extras, num),
            "proximal_logprobs": _logprobs("proximal_logprobs", proximal_logprobs, num, trained),
            "ref_logprobs": _logprobs("ref_logprobs", ref_logprobs, num, trained),
            "values": None if values is None else _per_token("values", values, num, trained),
            "returns": None if returns is None else _per_token("returns", returns, num, trained),
            "is_kept": None if is_kept is None else _mask("is_kept", is_kept, num),
        }
        others = {"group": group, "rollout": rollout, "context": context}
        for name, value in {**arrays, **others}.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    def replace(self, **changes: Any) -> Row:
        """Return a row with some fields changed; `TypeError` for a field there is none of.

        Example:
            row.replace(advantages=0.5, ref_logprobs=found)
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Row(**{**fields, **changes})

    def spread(self, values: Any) -> Floats:
        """Return values of the trained tokens at their places among all, 0 elsewhere; float64 [T].

        values: a list, an array or a tensor: what `trainer_logprobs` and its like say of a row, as
            the row takes it.
        """
        plain = values.tolist() if hasattr(values, "tolist") else values
        numbers = np.array(plain, dtype=np.float64)
        if numbers.shape != (self.num_trained,):
            raise ValueError(f"{self.num_trained} tokens are trained, got shape {numbers.shape}")
        found = np.zeros(len(self))
        found[1:][self.loss_mask[1:]] = numbers
        return found

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        """Trained tokens; the first never is."""
        return int(self.loss_mask[1:].sum())


_MAX_TOKEN_ID = 2**31 - 1
_MAX_LOGPROB = 1e-3
"""Samplers round; a log-prob of a hair above 0 is no mistake of the caller's."""


def _integers(name: str, values: Sequence[int] | Ints) -> Ints:
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} is a list of integers, got shape {array.shape} of {array.dtype}")
    return array.astype(np.int64)


def _tokens(values: Sequence[int] | Ints) -> Ints:
    tokens = _integers("token_ids", values)
    if not len(tokens):
        raise ValueError("token_ids is empty; a row has at least one token")
    bad = tokens[(tokens < 0) | (tokens > _MAX_TOKEN_ID)]
    if len(bad):
        raise ValueError(f"token_ids holds {bad[0]}, allowed is 0 to {_MAX_TOKEN_ID}")
    return tokens


def _extras(values: Sequence[int] | Ints, num: int) -> Ints:
    extras = _integers("extras", values)
    if len(extras) != num:
        raise ValueError(f"extras has {len(extras)} entries, token_ids has {num}")
    return extras


def _logprobs(
    name: str, values: Sequence[float] | Floats | None, num: int, trained: Ints
) -> Floats | None:
    if values is None:
        return None
    logprobs = _numbers(name, values, num)
    _check_finite(name, logprobs, trained)
    over = trained[logprobs[trained] > _MAX_LOGPROB]
    if len(over):
        t = int(over[0])
        raise ValueError(f"{name}[{t}] is {logprobs[t]}, a log-prob is at most 0")
    return logprobs


def _per_token(name: str, values: Any, num: int, trained: Ints) -> Floats:
    """Return a number for each token, of one for all or one for each."""
    if isinstance(values, (int, float, np.number)):
        values = np.full(num, float(values))
    numbers = _numbers(name, values, num)
    _check_finite(name, numbers, trained)
    return numbers


def _weight(values: Any, num: int, trained: Ints) -> Floats:
    weight = _per_token("weight", values, num, trained)
    under = trained[weight[trained] < 0]
    if len(under):
        t = int(under[0])
        raise ValueError(f"weight[{t}] is {weight[t]}, a weight is at least 0")
    return weight


def _mask(name: str, values: Any, num: int) -> Bools:
    array = np.array(values)
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape}, token_ids has {num} entries")
    if not ((array == 0) | (array == 1)).all():
        raise ValueError(f"{name} holds true and false (1 and 0) alone; `weight` scales a token")
    return array.astype(np.bool_)


def _numbers(name: str, values: Any, num: int) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name} is a list of numbers, one for each token: {e}") from e
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape}, token_ids has {num} entries")
    return array


def _check_finite(name: str, values: Floats, trained: Ints) -> None:
    bad = trained[~np.isfinite(values[trained])]
    if len(bad):
        t = int(bad[0])
        raise ValueError(f"{name}[{t}] is {values[t]}, and the token is trained")
