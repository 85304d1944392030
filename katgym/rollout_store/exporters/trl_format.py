"""Format `trl`: token ids for TRL (its 1.16).

`input_ids` and `labels` (-100 where nothing is trained) are a pre-tokenised data set of
`SFTTrainer`. `prompt_ids`, `completion_ids`, `logprobs` and `env_mask` (1 on sampled tokens) are
what a `rollout_func` of `GRPOTrainer` returns, one row each. `logprobs` is None where a call's are
not known. One row for each path; tokens that an earlier path trains are not trained again.

Not here: chat messages for TRL (`messages_format.py`, `prompt_completion_format.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from katgym.rollout_store.exporters.session_columns import SESSION_COLUMNS, session_values
from katgym.rollout_store.exporters.token_paths import token_paths
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession

_UNTRAINED = -100
"""PyTorch's `ignore_index`."""


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a row for each path of a session."""
    for path in token_paths(stored):
        labels = [
            token if is_sampled else _UNTRAINED
            for token, is_sampled in zip(path.response_ids, path.mask, strict=True)
        ]
        yield {
            "input_ids": path.prompt_ids + path.response_ids,
            "labels": [_UNTRAINED] * len(path.prompt_ids) + labels,
            "prompt_ids": path.prompt_ids,
            "completion_ids": path.response_ids,
            "logprobs": path.logprobs,
            "env_mask": path.mask,
            **session_values(stored),
        }


EXPORTER = Exporter(
    rows=rows,
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
