"""The forest that attention layers run on, as all of them need to know it.

Not here: the attention (`katgym_kernels`), plans of it (`plans/forest_plans.py`), how layers are
reached (`hugging_face.py`), forests in parts (`split_backward.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from katgym_kernels import tree_attention
from katgym_trainer.plans.forest_plans import ForestPlans

Key = tuple[str, int]
"""A recurrent layer, and which of its ops."""


class TreeContext:
    """One run of all layers over a forest."""

    def __init__(self, plans: ForestPlans, *, backend: str) -> None:
        """plans: of the forest, whichever run it is."""
        self.plans = plans
        self.backend = backend
        self.ran: set[int | str | None] = set()
        """Layers that ran over the forest: numbers of those that attend, places of others."""

    def attend(
        self,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        *,
        layer: int | None = None,
        scale: float | None,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return attention over each token's ancestors; see `tree_attention`.

        layer: number of the layer that attends, which forests in parts must know. chunk: positions
            are cut into runs of so many, which see nothing of the runs before.
        """
        self.ran.add(layer)
        plan = self.plans.attention(window)
        if chunk is not None:
            plan, keys, queries = self.plans.chunks(chunk)
            q_HND, k_KND, v_KND = q_HND[:, queries], k_KND[:, keys], v_KND[:, keys]
        out_HND = tree_attention(
            q_HND,
            k_KND,
            v_KND,
            plan,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            backend=self.backend,
        )
        return out_HND if chunk is None else out_HND[:, queries.argsort()]

    def by_depth(self, scale: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the factor that scales queries by depth, if they were scaled by packed place."""
        depth_N = self.plans.depth_N[self.plans.num_above :].to(self.plans.device)
        found_N = scale(depth_N) / scale(torch.arange(len(depth_N), device=self.plans.device))
        return found_N[:, None]

    def enter(self, key: Key) -> Tensor | None:
        """Return the recurrent state that the roots start from; None: they start anew."""
        return None

    def leave(self, key: Key, out: Tensor, states: Tensor) -> Tensor:
        """Hand on the states at the exits, [exits, ...]; return what the op gives."""
        return out
