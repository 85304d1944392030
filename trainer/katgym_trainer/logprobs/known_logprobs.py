"""Log-probs that a loss needs and rows do not know: computed by whose they are, through a cache.

Not here: the cache (`logprob_cache.py`), losses.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
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
from katgym_trainer.row import Row
from katgym_trainer.trainer_config import TrainerConfig


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
        self._reference: TreeModel | None = None
        if reference is not None:
            self._reference = as_tree_model(reference, ranks=shares.ranks)
        self._has_adapters = hasattr(model, "disable_adapter")
        self._model = model
        self._reference_version = ""
        if self._needs_reference and (reference is not None or self._has_adapters):
            frozen = reference if isinstance(reference, torch.nn.Module) else model
            self._reference_version = f"reference {_sha256(frozen)}"
        self._own_version = ""
        self._run = secrets.token_hex(8)
        folder = config.logprob_cache_folder
        self.cache = LogprobCache(
            max_bytes=config.logprob_cache_mib * 2**20,
            folder=Path(folder) if folder is not None and shares.ranks.is_first else None,
        )

    def of(self, rows: Sequence[Row], *, num_steps: int) -> list[Row]:
        """Return the rows with all log-probs that are needed.

        num_steps: says which of its weights the trainer has; those before are forgotten.

        Raises `UsageError` if rows know no ref_logprobs and there is no reference.
        """
        found = list(rows)
        if self._needs_reference and any(row.ref_logprobs is None for row in rows):
            if not self._reference_version:
                raise UsageError(
                    "the loss compares with a reference model: give Trainer(reference=...), train"
                    " adapters (lora_rank), or rows that have ref_logprobs"
                )
            model: TreeModel | None = self._reference
            alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if model is None:
                from katgym_trainer.models.adapters import without_adapters  # imports peft

                model, alone = self._tree_model, without_adapters(self._model)
            with alone:
                found = self._fill(found, "ref_logprobs", model, version=self._reference_version)
        if self._needs_proximal and any(row.proximal_logprobs is None for row in rows):
            version = f"trainer {self._run} {num_steps}"
            if self._own_version not in ("", version):
                self.cache.forget(self._own_version)
            self._own_version = version
            found = self._fill(found, "proximal_logprobs", self._tree_model, version=version)
        return found

    def weights_changed(self) -> None:
        """Take the trainer's weights as others than before, though it has made as many steps."""
        self._run = secrets.token_hex(8)

    def _fill(self, rows: Sequence[Row], name: str, model: TreeModel, *, version: str) -> list[Row]:
        """Return rows with one kind of log-probs, computed where they are not known."""
        if name == "ref_logprobs":  # nothing was sampled from the reference: its own experts
            plain = [row.replace(routes=None) if row.routes is not None else row for row in rows]
        else:
            plain = list(rows)
        found = list(rows)
        missing = [place for place, row in enumerate(rows) if getattr(row, name) is None]
        computed = look_up_logprobs(
            model,
            [plain[place] for place in missing],
            cache=self.cache,
            version=version,
            max_tokens=self._config.max_tokens,
            backend=self._config.backend,
            temperature=self._config.temperature,
            shares=self._shares,
        )
        for place, logprobs_T in zip(missing, computed, strict=True):
            found[place] = rows[place].replace(**{name: logprobs_T})
        return found


def _sha256(model: torch.nn.Module) -> str:
    """Return a digest of all weights that are not trained."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            digest.update(f"{name} {list(parameter.shape)} {parameter.dtype}".encode())
            flat = whole(parameter.detach()).flatten().cpu().contiguous()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
