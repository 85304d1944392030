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

from katgym_trainer.routing.row_routes import RowRoutes

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
    routes: RowRoutes | None
    env: str

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
        routes: RowRoutes | None = None,
        env: str = "",
    ) -> None:
        """Check and keep, numbers on trained tokens alone; `ValueError` names what does not fit.

        loss_mask: true (1) on trained tokens.
        policy_logprobs: of each token when sampled; None: not known, and off-policy losses refuse.
            Finite on trained tokens: a sampler that tells -inf did not draw the token.
        advantages: a number for the row, or one for each token.
        weight: in the loss, at least 0, as a number for the row or one for each token.
        group, env: rows of one group come from one task; the env's id says who its teacher is.
        rollout: rows of one rollout count once in statistics; None: a rollout of its own.
        context: what else changes the row's whole forward (an adapter); others share nothing.
        extras: what else changes the forward of each token (a modality), as a number: tokens of
            different extras are different tokens. None is 0 for each.
        proximal_logprobs: of each token under the trainer's weights before the step, for losses
            that tell their own ratio from the sampler's mismatch; None: those that it has now.
        ref_logprobs: of each token under the reference model that a KL term keeps close to.
        values, returns: what a critic said before each token, and what it should have said.
        is_kept: true on tokens of events (tool calls, memory) that pruning leaves in; None: none.
        routes: experts that ran each token when it was sampled; None: the forward's own are taken.
        """
        tokens = _tokens(token_ids)
        num = len(tokens)
        mask = _mask("loss_mask", loss_mask, num)
        trained = np.flatnonzero(mask[1:]) + 1
        numbers = {
            "advantages": advantages, "weight": weight, "values": values, "returns": returns,
            "policy_logprobs": policy_logprobs, "proximal_logprobs": proximal_logprobs,
            "ref_logprobs": ref_logprobs,
        }  # fmt: skip
        arrays: dict[str, Any] = {
            **{name: _numbers(name, each, num, trained) for name, each in numbers.items()},
            "token_ids": tokens, "loss_mask": mask,
            "extras": None if extras is None else _integers("extras", extras, num),
            "is_kept": None if is_kept is None else _mask("is_kept", is_kept, num),
        }  # fmt: skip
        if routes is not None and len(routes) != num:
            raise ValueError(f"routes are of {len(routes)} tokens, token_ids has {num} entries")
        others = {"group": group, "rollout": rollout, "context": context, "routes": routes}
        for name, value in {**arrays, **others, "env": env}.items():
            if name in arrays and value is not None:
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
        found[self.trained] = numbers
        return found

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained(self) -> Ints:
        """Places of the trained tokens; the first never is."""
        return np.flatnonzero(self.loss_mask[1:]) + 1

    @property
    def num_trained(self) -> int:
        """How many tokens are trained."""
        return int(self.loss_mask[1:].sum())


_MAX_TOKEN_ID = 2**31 - 1
_MAX_LOGPROB = 1e-3
"""Samplers round; a log-prob of a hair above 0 is no mistake of the caller's."""


def _integers(name: str, values: Any, num: int | None = None) -> Ints:
    """Return integers, as many as there are tokens."""
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} is a list of integers, got shape {array.shape} of {array.dtype}")
    if num is not None and len(array) != num:
        raise ValueError(f"{name} has {len(array)} entries, token_ids has {num}")
    return array.astype(np.int64)


def _tokens(values: Any) -> Ints:
    tokens = _integers("token_ids", values)
    if not len(tokens):
        raise ValueError("token_ids is empty; a row has at least one token")
    bad = tokens[(tokens < 0) | (tokens > _MAX_TOKEN_ID)]
    if len(bad):
        raise ValueError(f"token_ids holds {bad[0]}, allowed is 0 to {_MAX_TOKEN_ID}")
    return tokens


def _mask(name: str, values: Any, num: int) -> Bools:
    array = np.array(values)
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape}, token_ids has {num} entries")
    if not ((array == 0) | (array == 1)).all():
        raise ValueError(f"{name} holds true and false (1 and 0) alone; `weight` scales a token")
    return array.astype(np.bool_)


def _numbers(name: str, values: Any, num: int, trained: Ints) -> Floats | None:
    """Return a number for each token, of one for each or, unless they are log-probs, for all.

    None stays None where a row need not know it.
    """
    if values is None and name not in ("advantages", "weight"):
        return None
    is_logprob = name.endswith("_logprobs")
    if isinstance(values, (int, float, np.number)) and not is_logprob:
        values = np.full(num, float(values))
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name} is a list of numbers, one for each token: {e}") from e
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape}, token_ids has {num} entries")
    looked_at = array[trained]
    for is_bad, why in (
        (
            ~np.isfinite(looked_at),
            "and the token is trained: give a finite number, or set its loss_mask to 0",
        ),
        (is_logprob & (looked_at > _MAX_LOGPROB), "a log-prob is at most 0"),
        ((name == "weight") & (looked_at < 0), "a weight is at least 0"),
    ):
        if is_bad.any():
            t = int(trained[is_bad][0])
            raise ValueError(f"{name}[{t}] is {array[t]}, {why}")
    return array
