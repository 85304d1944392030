"""Log-probs that a loss needs and rows do not know: computed by whose they are, through a cache.

Not here: the cache (`logprob_cache.py`), losses.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from katgym.errors import UsageError
from katgym_trainer.gradients.forward_backward import as_tree_model
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.logprobs.logprob_reuse import look_up_logprobs
from katgym_trainer.losses.objective import Loss
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.ranks.ranks import whole
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.row import Floats, Row
from katgym_trainer.trainer_config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenModel:
    """A model whose weights stay as they are."""

    model: TreeModel
    version: str
    """Names the weights."""


class KnownLogprobs:
    """Adds to rows what a loss needs of the reference model, and of the trainer before a step."""

    def __init__(
        self,
        model: torch.nn.Module,
        tree_model: TreeModel,
        loss: Loss,
        config: TrainerConfig,
        *,
        reference: torch.nn.Module | TreeModel | None,
        shares: Shares,
    ) -> None:
        """tree_model: `model` as it runs on forests.

        reference: a model of its own; None: the trained one without its adapters, if it has any.

        `UsageError` for a reference that the loss does not look at.
        """
        self._config = config
        self._needs_reference = "ref_logprobs" in loss.needs
        # Of one update, the trainer before the step is the trainer.
        self._needs_proximal = "proximal_logprobs" in loss.needs and config.num_updates > 1
        if reference is not None and not self._needs_reference:
            raise UsageError(
                f"loss {loss.name!r} looks at no reference; set its kl_coef, or give none"
            )
        self._tree_model, self._shares = tree_model, shares
        self._model = model
        self._reference: FrozenModel | None = None
        if reference is not None:
            self._reference = self.freeze(reference)
        elif self._needs_reference and hasattr(model, "disable_adapter"):
            self._reference = FrozenModel(model=tree_model, version=_version(model))
        self._is_own = reference is None
        self._own_version = ""
        self._run = secrets.token_hex(8)
        folder = config.logprob_cache_folder
        self.cache = LogprobCache(
            max_bytes=config.logprob_cache_mib * 2**20,
            folder=Path(folder) if folder is not None and shares.ranks.is_first else None,
        )

    def freeze(self, model: torch.nn.Module | TreeModel) -> FrozenModel:
        """Return a model that is not trained as one that log-probs are asked of; see `of_frozen`.

        `ValueError` if it would not be exact on a forest.
        """
        tree_model = as_tree_model(model, ranks=self._shares.ranks)
        named = model if isinstance(model, torch.nn.Module) else self._model
        return FrozenModel(model=tree_model, version=_version(named))

    def of_frozen(self, rows: Sequence[Row], frozen: FrozenModel) -> list[Floats]:
        """Return what a model gives each row's tokens, [T] each, as `Row` takes log-probs.

        Nothing was sampled from it: a mixture takes its own experts.
        """
        plain = [row.replace(routes=None) if row.routes is not None else row for row in rows]
        return self._look_up(frozen.model, plain, version=frozen.version)

    def of(self, rows: Sequence[Row], *, num_steps: int) -> list[Row]:
        """Return the rows with all log-probs that are needed.

        num_steps: says which of its weights the trainer has; those before are forgotten.

        Raises `UsageError` if rows know no ref_logprobs and there is no reference.
        """
        found = list(rows)
        if self._needs_reference and any(row.ref_logprobs is None for row in rows):
            if self._reference is None:
                raise UsageError(
                    "the loss compares with a reference model: give Trainer(reference=...), train"
                    " adapters (lora_rank), or rows that have ref_logprobs"
                )
            alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if self._is_own:
                from katgym_trainer.models.adapters import without_adapters  # imports peft

                alone = without_adapters(self._model)
            of_reference = functools.partial(self.of_frozen, frozen=self._reference)
            with alone:
                found = _fill(found, "ref_logprobs", of_reference)
        if self._needs_proximal and any(row.proximal_logprobs is None for row in rows):
            version = f"trainer {self._run} {num_steps}"
            if self._own_version not in ("", version):
                self.cache.forget(self._own_version)
            self._own_version = version
            of_own = functools.partial(self._look_up, self._tree_model, version=version)
            found = _fill(found, "proximal_logprobs", of_own)
        return found

    def weights_changed(self) -> None:
        """Take the trainer's weights as others than before, though it has made as many steps."""
        self._run = secrets.token_hex(8)

    def _look_up(self, model: TreeModel, rows: Sequence[Row], *, version: str) -> list[Floats]:
        return look_up_logprobs(
            model,
            rows,
            cache=self.cache,
            version=version,
            max_tokens=self._config.max_tokens,
            backend=self._config.backend,
            temperature=self._config.temperature,
            shares=self._shares,
        )


def _fill(
    rows: Sequence[Row], name: str, compute: Callable[[Sequence[Row]], list[Floats]]
) -> list[Row]:
    """Return rows with one kind of log-probs, computed where they are not known."""
    found = list(rows)
    missing = [place for place, row in enumerate(rows) if getattr(row, name) is None]
    computed = compute([rows[place] for place in missing])
    for place, logprobs_T in zip(missing, computed, strict=True):
        found[place] = rows[place].replace(**{name: logprobs_T})
    return found


def _version(model: torch.nn.Module) -> str:
    """Return a name of all weights that are not trained."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            digest.update(f"{name} {list(parameter.shape)} {parameter.dtype}".encode())
            flat = whole(parameter.detach()).flatten().cpu().contiguous()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return f"reference {digest.hexdigest()}"
