"""Plans of one forest: all that layers need to know of its shape, made once for all of them.

Not here: the layers' context (`tree_context.py`), the thread that makes plans ahead
(`plans_ahead.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from katgym_kernels import TreePlan
from katgym_kernels.devices import device_of_tensors
from katgym_kernels.tree_plan import Makers, parents
from katgym_trainer.models.segments import Layout, Segments

T = TypeVar("T")
Asked = dict[tuple[str, Hashable], Makers]
"""Methods of `ForestPlans` and what each was given, with what was asked of its `TreePlan`."""


class Chunks(NamedTuple):
    """Attention that sees nothing beyond multiples of a size."""

    plan: TreePlan
    """Of the forest in which a token at each multiple is a root, in an order of its own."""
    keys: Tensor
    """int64: the places of its keys among all tokens."""
    queries: Tensor
    """int64: the places of its queries among those that are asked for."""


class ForestPlans:
    """The plans of one forest on one device; not for several threads at once.

    Example:
        ForestPlans(forest.end, forest.position_ids, device=torch.device("cpu")).attention(None)
    """

    def __init__(
        self,
        end_N: Tensor,
        depth_N: Tensor,
        *,
        device: torch.device,
        num_above: int = 0,
        exits: Tensor | None = None,
    ) -> None:
        """num_above: see `TreePlan.build`. exits: the others whose recurrent state is wanted."""
        self.device = device_of_tensors(device)
        exits = torch.empty(0, dtype=torch.int64) if exits is None else exits
        self.exits = exits.to(self.device)
        """int64, ascending: tokens whose recurrent state other forests go on from."""
        self.depth_N = depth_N
        """int64 on the CPU, tokens above among them."""
        self.num_above = num_above
        self._end = end_N
        self._own_end = end_N[num_above:] - num_above
        self._made: dict[tuple[str, Hashable], Any] = {}

    def asked(self) -> Asked:
        """Return what was asked of these, for `make_ahead` of others."""
        plans = {key: _plan_in(found) for key, found in self._made.items()}
        return {key: plan.makers() if plan is not None else {} for key, plan in plans.items()}

    def make_ahead(self, asked: Asked) -> None:
        """Make what is going to be asked of these."""
        for (method, which), makers in asked.items():
            plan = _plan_in(getattr(self, method)(which))
            if plan is not None:
                plan.make_ahead(makers)

    def attention(self, window: int | None) -> TreePlan:
        """Return the plan for layers that see so many positions; None sees all."""
        return self._once(
            ("attention", window),
            lambda: TreePlan.build(
                self._end,
                depth_N=self.depth_N,
                window=window,
                num_above=self.num_above,
                device=self.device,
            ),
        )

    def chunks(self, size: int) -> Chunks:
        """Return attention to the last multiple of a size, and what is after it, alone.

        Runs of tokens that hold those above alone are left out.
        """
        return self._once(("chunks", size), lambda: self._make_chunks(size))

    def _make_chunks(self, size: int) -> Chunks:
        parent_N = parents(self._end).tolist()
        depth_N = self.depth_N.tolist()
        root_of: list[int] = []
        for token, depth in enumerate(depth_N):
            root_of.append(root_of[parent_N[token]] if depth % size else token)
        order_N = torch.tensor(root_of).argsort(stable=True)
        wanted = set(root_of[self.num_above :])
        is_kept_N = torch.tensor([root in wanted for root in root_of])
        keys = order_N[is_kept_N[order_N]]
        place_of = {token: place for place, token in enumerate(keys.tolist())}
        end = list(range(1, len(keys) + 1))
        for place in range(len(keys) - 1, -1, -1):
            token = int(keys[place])
            if depth_N[token] % size:
                above = place_of[parent_N[token]]
                end[above] = max(end[above], end[place])
        num_above = int((keys < self.num_above).sum())
        depth = self.depth_N[keys]
        plan = TreePlan.build(end, depth_N=depth, num_above=num_above, device=self.device)
        queries = keys[num_above:] - self.num_above
        return Chunks(plan, keys.to(self.device), queries.to(self.device))

    def windows(self, size: int) -> tuple[Tensor, Tensor]:
        """Return each token's ancestors and itself, [N, size], and the tokens whose lie elsewhere.

        Places are those of the tokens after size - 1 others, which lie above the roots.
        """

        def make() -> tuple[Tensor, Tensor]:
            above = size - 1
            up = torch.cat(
                [torch.arange(-1, above - 1).clamp(min=0), parents(self._own_end) + above]
            )
            columns = [torch.arange(len(self._own_end)) + above]
            for _ in range(above):
                columns.insert(0, up[columns[0]])
            windows_NK = torch.stack(columns, 1)
            is_moved_N = (windows_NK.diff(dim=1) != 1).any(1)
            moved = torch.nonzero(is_moved_N)[:, 0]
            return windows_NK.to(self.device), moved.to(self.device)

        return self._once(("windows", size), make)

    def segments(self, layout: Layout) -> Segments:
        """Return the forest cut into runs of tokens without a fork."""
        return self._once(
            ("segments", layout),
            lambda: Segments.of(self._own_end, self.exits.cpu(), device=self.device, layout=layout),
        )

    def _once(self, key: tuple[str, Hashable], make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found


def _plan_in(found: Any) -> TreePlan | None:
    """Return the plan of attention among what was made, if it is one."""
    plan = found.plan if isinstance(found, Chunks) else found
    return plan if isinstance(plan, TreePlan) else None
