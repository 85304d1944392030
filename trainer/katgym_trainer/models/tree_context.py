"""The forest that attention layers run on, as all of them need to know it.

Not here: the attention (`katgym_kernels`), how layers are reached (`hugging_face.py`), forests in
parts (`split_backward.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.tree_plan import parents
from katgym_trainer.models.segments import Layout, Segments

Key = tuple[str, int]
"""A recurrent layer, and which of its ops."""


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
        exits: Tensor | None = None,
    ) -> None:
        """num_above: see `TreePlan.build`. exits: the others whose recurrent state is wanted."""
        self.backend = backend
        self.ran: set[int | str | None] = set()
        """Layers that ran over the forest: numbers of those that attend, places of others."""
        exits = torch.empty(0, dtype=torch.int64) if exits is None else exits
        self.exits = exits.to(device)
        """int64, ascending: tokens whose recurrent state other forests go on from."""
        self._own_end = end_N[num_above:] - num_above
        self._chunk_plans: dict[int, tuple[TreePlan, Tensor, Tensor]] = {}
        self._windows: dict[int, tuple[Tensor, Tensor]] = {}
        self._segments: dict[Layout, Segments] = {}
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
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return attention over each token's ancestors; see `tree_attention`.

        layer: number of the layer that attends, which forests in parts must know. chunk: positions
            are cut into runs of so many, which see nothing of the runs before.
        """
        self.ran.add(layer)
        plan = self.plan(window)
        if chunk is not None:
            plan, keys, queries = self._chunks(chunk)
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
        depth_N = self._depth[self._num_above :].to(self._device)
        found_N = scale(depth_N) / scale(torch.arange(len(depth_N), device=self._device))
        return found_N[:, None]

    def _chunks(self, size: int) -> tuple[TreePlan, Tensor, Tensor]:
        """Return the forest in which a token at each multiple of size is a root.

        With the places of its keys among all tokens, and of its queries among those asked for: it
        is in an order of its own. Runs that hold tokens above alone are left out.
        """
        if size not in self._chunk_plans:
            parent_N = parents(self._end).tolist()
            depth_N = self._depth.tolist()
            root_of: list[int] = []
            for token, depth in enumerate(depth_N):
                root_of.append(root_of[parent_N[token]] if depth % size else token)
            order_N = torch.tensor(root_of).argsort(stable=True)
            wanted = set(root_of[self._num_above :])
            is_kept_N = torch.tensor([root in wanted for root in root_of])
            keys = order_N[is_kept_N[order_N]]
            place_of = {token: place for place, token in enumerate(keys.tolist())}
            end = list(range(1, len(keys) + 1))
            for place in range(len(keys) - 1, -1, -1):
                token = int(keys[place])
                if depth_N[token] % size:
                    above = place_of[parent_N[token]]
                    end[above] = max(end[above], end[place])
            num_above = int((keys < self._num_above).sum())
            plan = TreePlan.build(
                end, depth_N=self._depth[keys], num_above=num_above, device=self._device
            )
            queries = keys[num_above:] - self._num_above
            self._chunk_plans[size] = plan, keys.to(self._device), queries.to(self._device)
        return self._chunk_plans[size]

    def windows(self, size: int) -> tuple[Tensor, Tensor]:
        """Return each token's ancestors and itself, [N, size], and the tokens whose lie elsewhere.

        Places are those of the tokens after size - 1 others, which lie above the roots.
        """
        if size not in self._windows:
            above = size - 1
            up = torch.cat(
                [torch.arange(-1, above - 1).clamp(min=0), parents(self._own_end) + above]
            )
            columns = [torch.arange(len(self._own_end)) + above]
            for _ in range(above):
                columns.insert(0, up[columns[0]])
            windows_NK = torch.stack(columns, 1)
            is_moved_N = (windows_NK.diff(dim=1) != 1).any(1)
            found = windows_NK, torch.nonzero(is_moved_N)[:, 0]
            self._windows[size] = found[0].to(self._device), found[1].to(self._device)
        return self._windows[size]

    def segments(self, layout: Layout) -> Segments:
        """Return the forest cut into runs of tokens without a fork."""
        if layout not in self._segments:
            self._segments[layout] = Segments.of(
                self._own_end, self.exits.cpu(), device=self._device, layout=layout
            )
        return self._segments[layout]

    def enter(self, key: Key) -> Tensor | None:
        """Return the recurrent state that the roots start from; None: they start anew."""
        return None

    def leave(self, key: Key, out: Tensor, states: Tensor) -> Tensor:
        """Hand on the states at the exits, [exits, ...]; return what the op gives."""
        return out
