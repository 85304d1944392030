"""Interface of a model that is trained on packed forests.

Not here: how models of transformers do it (`hugging_face.py`).

Letters: N packed tokens, D model, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.routing.replay import RoutingReplay


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """logits = softcap * tanh(scale (h W^T + b) / softcap), without the tanh if softcap is None.

    Example:
        Head(weight_VD=model.lm_head.weight)
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


@runtime_checkable
class TreeModel(Protocol):
    """A causal language model that runs on a forest: every token sees its ancestors and itself."""

    @property
    def device(self) -> torch.device:
        """Where its inputs go."""

    def head(self) -> Head:
        """Return what turns hidden states into logits."""

    def prepare(self) -> AbstractContextManager[None]:
        """Return a context for forward and backward."""

    def hidden(self, forest: PackedForest | ForestPart, context: TreeContext) -> Tensor:
        """Return the last hidden states, [N, D], attending with `context.attend` in every layer.

        Of the forest, `input_ids` and `position_ids` are all there is to look at; of a model that
        `ReplaysRoutes`, `routes` too.
        """


@runtime_checkable
class ReplaysRoutes(Protocol):
    """A `TreeModel` whose routers take the experts of a forest's `routes`."""

    routing: RoutingReplay
