"""Log-probs of rows from a cache, and from the model only where the cache has none.

Those of a reference model come again with every epoch, those of the trainer before a step with
every update that starts from it; each time is a forward pass.

    with LogprobCache(folder="runs/7") as cache:
        logprobs = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=32_768)
        rows = [row.replace(ref_logprobs=x) for row, x in zip(rows, logprobs, strict=True)]

Not here: how they are kept (`logprob_cache.py`).

Letters: T tokens of one row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from katgym_trainer.gradients.forward_backward import trainer_logprobs
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.row import Floats, Row


def look_up_logprobs(
    model: torch.nn.Module | TreeModel,
    rows: Sequence[Row],
    *,
    cache: LogprobCache,
    version: str,
    max_tokens: int,
    backend: str = "auto",
    temperature: float = 1.0,
    shares: Shares | None = None,
) -> list[Floats]:
    """Return the model's log-probs of each row; only rows that are not in the cache are computed.

    float64 [T] each, 0 where nothing is trained: as `Row` takes them for `ref_logprobs` or
    `proximal_logprobs`. The next call with this cache returns the same bits, while it keeps them.

    version: names the model's weights; after a step of the optimizer it is another.
    max_tokens: of a forest, or of its parts where a row is longer, as in `pack`.
    backend, temperature: as in `trainer_logprobs`.
    shares: which ranks compute which rows; they have them all, and the first one's cache counts.
    """
    shares = shares or Shares()
    is_first, share = shares.ranks.is_first, shares.ranks.share_first
    found: list[Floats | None] = share(
        [cache.lookup(row, version=version, temperature=temperature) for row in rows]
        if is_first
        else []
    )
    missing = [place for place, logprobs_T in enumerate(found) if logprobs_T is None]
    if missing:
        compute = functools.partial(
            trainer_logprobs, model, backend=backend, temperature=temperature, ranks=shares.ranks
        )
        unknown = [rows[place] for place in missing]
        computed = shares.of_rows(unknown, compute, max_tokens=max_tokens)
        stored: list[Floats] = []
        for number, place in enumerate(missing if is_first else ()):
            row, logprobs_T = rows[place], rows[place].spread(computed[number])
            stored.append(cache.store(row, logprobs_T, version=version, temperature=temperature))
        for place, logprobs_T in zip(missing, share(stored), strict=True):
            found[place] = logprobs_T
    return [logprobs_T for logprobs_T in found if logprobs_T is not None]
