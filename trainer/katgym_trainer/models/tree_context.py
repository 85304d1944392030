"""What every attention layer needs to know of the forest it runs on.

Not here: the attention (`katgym_kernels`), how layers are reached (`hugging_face.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_trainer.packed_forest import PackedForest


class TreeContext:
    """The plans of one forest on one device, by window, shared by all layers."""

    def __init__(self, forest: PackedForest, device: torch.device, *, backend: str) -> None:
        self.backend = backend
        self.num_calls = 0
        """Attention layers that have run."""
        self._end = forest.end
        self._depth = forest.position_ids
        self._device = device
        self._plans: dict[int | None, TreePlan] = {}

    def plan(self, window: int | None) -> TreePlan:
        """Return the plan for layers that see so many positions; None sees all."""
        if window not in self._plans:
            self._plans[window] = TreePlan.build(
                self._end, depth_N=self._depth, window=window, device=self._device
            )
        return self._plans[window]

    def attend(
        self,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        *,
        scale: float | None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return attention over each token's ancestors; see `tree_attention`."""
        self.num_calls += 1
        return tree_attention(
            q_HND,
            k_KND,
            v_KND,
            self.plan(window),
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            backend=self.backend,
        )
