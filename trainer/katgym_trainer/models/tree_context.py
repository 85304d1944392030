"""The forest that attention layers run on, as all of them need to know it.

Not here: the attention (`katgym_kernels`), how layers are reached (`hugging_face.py`), forests in
parts (`split_backward.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention


class TreeContext:
    """The plans of one forest on one device, by window, shared by all layers."""

    def __init__(
        self,
        end_N: Tensor,
        depth_N: Tensor,
        *,
        device: torch.device,
        backend: str,
        num_above: int = 0,
    ) -> None:
        """num_above: see `TreePlan.build`."""
        self.backend = backend
        self.num_calls = 0
        """Attention layers that have run."""
        self._end = end_N
        self._depth = depth_N
        self._num_above = num_above
        self._device = device
        self._plans: dict[int | None, TreePlan] = {}

    def plan(self, window: int | None) -> TreePlan:
        """Return the plan for layers that see so many positions; None sees all."""
        if window not in self._plans:
            self._plans[window] = TreePlan.build(
                self._end,
                depth_N=self._depth,
                window=window,
                num_above=self._num_above,
                device=self._device,
            )
        return self._plans[window]

    def attend(
        self,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        *,
        layer: int | None = None,
        scale: float | None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return attention over each token's ancestors; see `tree_attention`.

        layer: number of the layer that attends, which forests in parts must know.
        """
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
