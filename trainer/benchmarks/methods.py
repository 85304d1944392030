"""Ways to train the same rows with the same gradient, from every row by itself to the whole trie.

Not here: what is timed (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from katgym_trainer import Loss, Row, forward_backward, pack

Step = Callable[[Any, list[Row], Loss, int], object]
"""Of a model, rows, a loss, and the tokens of a micro-batch; adds the gradient."""


def rows_alone(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """The model as transformers runs it, a row at a time; log-probs of trained tokens alone."""
    num_trained = sum(row.num_trained for row in rows)
    for row in rows:
        ids = torch.from_numpy(row.token_ids.copy()).to(model.device)
        at = torch.from_numpy(row.loss_mask.copy()).nonzero()[:, 0].to(model.device)
        at = at[at > 0]
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        logits = model.lm_head(hidden[at - 1]).float()
        logp = logits.log_softmax(-1).gather(1, ids[at][:, None])
        (-logp.sum() / num_trained).backward()


def padded(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """Batches of rows of like length, padded on the right, as transformers runs them."""
    num_trained = sum(row.num_trained for row in rows)
    batches: list[list[Row]] = [[]]
    for row in sorted(rows, key=len):
        if batches[-1] and len(row) * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(row)
    for batch in batches:
        width = max(map(len, batch))
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        is_token, is_trained = torch.zeros(2, len(batch), width, dtype=torch.bool)
        for i, row in enumerate(batch):
            ids[i, : len(row)] = torch.from_numpy(row.token_ids.copy())
            is_token[i, : len(row)] = True
            is_trained[i, 1 : len(row)] = torch.from_numpy(row.loss_mask[1:].copy())
        ids, is_token, is_trained = (t.to(model.device) for t in (ids, is_token, is_trained))
        hidden = model.model(
            input_ids=ids, attention_mask=is_token.long(), use_cache=False
        ).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][is_trained[:, 1:]]).float()
        logp = logits.log_softmax(-1).gather(1, ids[is_trained][:, None])
        (-logp.sum() / num_trained).backward()


def varlen(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """Rows one after another in micro-batches, none sees another: nothing is shared."""
    apart = [row.replace(context=i) for i, row in enumerate(rows)]
    forward_backward(model, pack(apart, max_tokens=max_tokens), loss)


def concatenated(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """As `varlen`, where a row that begins another has become part of it (append-only rollouts)."""
    varlen(model, joined(rows), loss, max_tokens)


def prompt_only(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """What all rows begin with is shared, nothing else."""
    num = min(map(len, rows))
    first = rows[0].token_ids[:num]
    for row in rows:
        differs = np.flatnonzero(row.token_ids[:num] != first[:num])
        num = int(differs[0]) if len(differs) else num
    apart = []
    for i, row in enumerate(rows):
        extras = np.full(len(row), 1 + i)
        extras[:num] = 0
        apart.append(row.replace(extras=extras))
    forward_backward(model, pack(apart, max_tokens=max_tokens), loss)


def forest(model: Any, rows: list[Row], loss: Loss, max_tokens: int) -> None:
    """`pack` and `forward_backward`."""
    forward_backward(model, pack(rows, max_tokens=max_tokens), loss)


METHODS: dict[str, Step] = {
    "rows": rows_alone,
    "padded": padded,
    "varlen": varlen,
    "concatenated": concatenated,
    "prompt only": prompt_only,
    "forest": forest,
}


def joined(rows: list[Row]) -> list[Row]:
    """Return the rows that begin no other; each trains what those that begin it train too.

    `ValueError` where two of them train the same token: one row cannot hold it twice.
    """
    found: list[tuple[Row, np.ndarray]] = []
    for row in sorted(rows, key=len, reverse=True):
        for longer, mask in found:
            num = len(row)
            if np.array_equal(longer.token_ids[:num], row.token_ids):
                if (mask[:num] & row.loss_mask).any():
                    raise ValueError("two rows train the same token")
                mask[:num] |= row.loss_mask
                break
        else:
            found.append((row, row.loss_mask.copy()))
    return [row.replace(loss_mask=mask) for row, mask in found]
