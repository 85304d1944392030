"""Formats of token ids: `trl`, `verl` and `rows`; one row for each path of a session.

Log-probs are None where a call's are not known; what was sampled under a constraint is masked as a
tool's tokens are. Not here: the paths (`Rollout.trajectories`);
formats of messages (`chat_formats.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from katgym.play.rollout import Trajectory
from katgym.rollout_store.exporters.session_columns import SESSION_COLUMNS, session_values
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout

_UNTRAINED = -100
"""PyTorch's `ignore_index`."""


def trl_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield token ids for TRL (its 1.16); tokens that an earlier path trains are not trained again.

    `input_ids` and `labels` (-100 where nothing is trained) are a pre-tokenised data set of
    `SFTTrainer`. `prompt_ids`, `completion_ids`, `logprobs` and `env_mask` (1 on sampled tokens)
    are what a `rollout_func` of `GRPOTrainer` returns, one row each.
    """
    for path, first in _cut_paths(stored):
        yield {
            "input_ids": path.token_ids,
            "labels": [
                token if is_sampled else _UNTRAINED
                for token, is_sampled in zip(path.token_ids, path.loss_mask, strict=True)
            ],
            "prompt_ids": path.token_ids[:first],
            "completion_ids": path.token_ids[first:],
            "logprobs": _known_logprobs(path, first),
            "env_mask": list(map(int, path.loss_mask[first:])),
            **session_values(stored),
        }


def verl_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield the fields of an `AgentLoopOutput` of verl, which it pads into its `DataProto`.

    `response_ids` holds sampled and tools' tokens, `response_mask` is 1 on the sampled ones. `uid`
    is the group whose rewards are compared; a session without one is its own. A session's
    `reward_score` stands on every row of it.
    """
    values = session_values(stored)
    for path, first in _cut_paths(stored):
        yield {
            "uid": stored.record.group_id or stored.record.session_id,
            "prompt_ids": path.token_ids[:first],
            "response_ids": path.token_ids[first:],
            "response_mask": list(map(int, path.loss_mask[first:])),
            "response_logprobs": _known_logprobs(path, first),
            "reward_score": values["reward"],
            "num_turns": len(path.turns),
            **values,
        }


def trainer_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield the fields of `katgym_trainer.Row`; advantages are the trainer's to compute.

    Row(row["token_ids"], row["loss_mask"], row["policy_logprobs"], group=row["group"],
        rollout=(row["rollout"], row["seat"]))
    """
    rollout = as_rollout(stored)
    for path in rollout.trajectories():
        if path.token_ids:
            yield {
                "token_ids": path.token_ids,
                "loss_mask": path.loss_mask,
                "policy_logprobs": _known_logprobs(path),
                "group": stored.record.group_id or stored.record.session_id,
                "rollout": rollout.episode_id,
                "seat": rollout.seat,
                **session_values(stored),
            }


def _cut_paths(stored: StoredSession) -> Iterator[tuple[Trajectory, int]]:
    """Yield the paths that have a sampled token, each with the place of its first one."""
    for path in as_rollout(stored).trajectories():
        if True in path.loss_mask:
            yield path, path.loss_mask.index(True)


def _known_logprobs(path: Trajectory, first: int = 0) -> list[float] | None:
    """Return the log-probs from token `first` on; None if those of a call are not known."""
    logprobs = path.policy_logprobs[first:]
    return None if any(map(math.isnan, logprobs)) else logprobs


TRL = Exporter(
    rows=trl_rows,
    columns={
        "input_ids": ColumnType.TOKEN_IDS,
        "labels": ColumnType.INTEGERS,
        "prompt_ids": ColumnType.TOKEN_IDS,
        "completion_ids": ColumnType.TOKEN_IDS,
        "logprobs": ColumnType.NUMBERS,
        "env_mask": ColumnType.INTEGERS,
        **SESSION_COLUMNS,
    },
    needs_tokens=True,
)
VERL = Exporter(
    rows=verl_rows,
    columns={
        "uid": ColumnType.TEXT,
        "prompt_ids": ColumnType.TOKEN_IDS,
        "response_ids": ColumnType.TOKEN_IDS,
        "response_mask": ColumnType.INTEGERS,
        "response_logprobs": ColumnType.NUMBERS,
        "reward_score": ColumnType.NUMBER,
        "num_turns": ColumnType.INTEGER,
        **SESSION_COLUMNS,
    },
    needs_tokens=True,
)
ROWS = Exporter(
    rows=trainer_rows,
    columns={
        "token_ids": ColumnType.TOKEN_IDS,
        "loss_mask": ColumnType.FLAGS,
        "policy_logprobs": ColumnType.NUMBERS,
        "group": ColumnType.TEXT,
        "rollout": ColumnType.TEXT,
        "seat": ColumnType.TEXT,
        **SESSION_COLUMNS,
    },
    needs_tokens=True,
)
