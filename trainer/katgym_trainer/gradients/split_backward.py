"""Forests in parts: any tree under any budget, with the gradient it would have as a whole.

A part attends to the tokens above it through their keys and values, which the parts that hold them
export layer by layer. Parts run depth first:

    run(part): export the part's keys and values, without a gradient
               run(child) for each child, which adds to the gradients of what was exported
               forward again and backward; the children's gradients enter at the keys and values

so that at any time one part has a graph, and the parts on the way to it keep keys, values and their
gradients alone. Parts without children run once, others forward twice. Gradients of children are
added up in float32 or better, whatever the model's precision. Not here: where a forest is cut
(`forest_parts.py`).

Letters: N tokens of the part, P of the path above it, H query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from katgym_trainer.models.tree_context import Key, TreeContext
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.plans.forest_plans import ForestPlans

LayerCall = tuple[int, int]
"""A layer, and its how manieth call."""
Tensors = tuple[Tensor, ...]
"""Keys and values of one layer, [K, tokens, D] each; or one op's recurrent states, [exits, ...]."""


@dataclass(slots=True)
class Exported:
    """What one part's tokens hand to those below, by layer, and what its gradient has become."""

    kept: dict[LayerCall | Key, Tensors] = field(default_factory=dict)
    gradients: dict[LayerCall | Key, Tensors] = field(default_factory=dict)
    exits: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """See `ForestPart`."""

    def add(self, key: LayerCall | Key, at: Tensor, gradients: Tensors, *, dim: int) -> None:
        """Add a child's gradients at some of the part's tokens, or exits."""
        if key not in self.gradients:
            self.gradients[key] = tuple(
                torch.zeros_like(kept, dtype=torch.promote_types(kept.dtype, torch.float32))
                for kept in self.kept[key]
            )
        for total, gradient in zip(self.gradients[key], gradients, strict=True):
            total.index_add_(dim, at, gradient.to(total.dtype))


class PartContext(TreeContext):
    """The context of one part: its tokens see their ancestors in it and the whole path above it."""

    def __init__(
        self,
        part: ForestPart,
        plans: ForestPlans,
        live: Mapping[int, Exported],
        *,
        own: Exported | None,
        should_export: bool,
        backend: str,
    ) -> None:
        """live: what the parts on the path exported, by number.

        own: where the part's keys and values go if should_export, else whose gradients enter them;
            None: nothing hangs off this part.
        """
        super().__init__(plans, backend=backend)
        device = plans.device
        self._own, self._should_export = own, should_export
        self.is_done = False
        """Whether the forward has ended: what runs now runs again, for activation checkpointing."""
        self._num_calls: dict[int, int] = {}
        self._pieces = [
            (live[number], part.path_token[part.path_part == number].to(device))
            for number in dict.fromkeys(part.path_part.tolist())
        ]
        self._above: dict[LayerCall, Tensors] = {}
        self._states: dict[Key, Tensor] = {}
        if plans.num_above:  # the exit that this part hangs off
            self._upper = live[int(part.path_part[-1])]
            upper_exits = self._upper.exits
            self._exit = torch.searchsorted(upper_exits, part.path_token[-1:]).to(device)

    def attend(
        self,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        *,
        layer: int | None = None,
        **options: Any,
    ) -> Tensor:
        if layer is None:
            raise ValueError(
                "a row longer than the budget needs a model whose layers say their number:"
                " context.attend(..., layer=)"
            )
        key = (layer, self._number_of_call(layer))
        if self._own is not None and self._should_export:
            self._own.kept[key] = (k_KND.detach(), v_KND.detach())
        elif self._own is not None and key in self._own.gradients:
            dk_KND, dv_KND = self._own.gradients[key]
            k_KND, v_KND = _enter(k_KND, dk_KND), _enter(v_KND, dv_KND)
        if self._pieces:
            # The path's keys and values: the same leaves however often a layer is run.
            if key not in self._above:
                pieces = [tuple(kept[:, at] for kept in up.kept[key]) for up, at in self._pieces]
                self._above[key] = tuple(torch.cat(ts, 1) for ts in zip(*pieces, strict=True))
                for leaf in self._above[key]:
                    leaf.requires_grad_(not self._should_export)
            above_k, above_v = self._above[key]
            k_KND, v_KND = torch.cat([above_k, k_KND], 1), torch.cat([above_v, v_KND], 1)
        return super().attend(q_HND, k_KND, v_KND, layer=layer, **options)

    def _number_of_call(self, layer: int) -> int:
        """Return how often the layer has run before in this forward."""
        num = self._num_calls.get(layer, 0)
        if not self.is_done:
            self._num_calls[layer] = num + 1
            return num
        if num > 1:
            raise ValueError(
                f"layer {layer} runs {num} times a token: a row longer than the budget is not"
                " trained with activation checkpointing, which runs it again in another order"
            )
        return 0

    def enter(self, key: Key) -> Tensor | None:
        if not self._pieces:
            return None
        if key not in self._states:
            (kept,) = self._upper.kept[key]
            state = kept.index_select(0, self._exit)[0].clone()
            self._states[key] = state.requires_grad_(not self._should_export)
        return self._states[key]

    def leave(self, key: Key, out: Tensor, states: Tensor) -> Tensor:
        if self._own is None:
            return out
        if self._should_export:
            self._own.kept[key] = (states.detach(),)
        elif key in self._own.gradients:
            (gradient,) = self._own.gradients[key]
            out = _Leave.apply(out, states, gradient)  # type: ignore[no-untyped-call]
        return out

    def relay(self) -> None:
        """Hand the gradients of what is above, after backward, to the parts that hold it."""
        for key, leaves in self._above.items():
            keys, values = (leaf.grad for leaf in leaves)
            if keys is None or values is None:
                continue
            start = 0
            for exported, at in self._pieces:
                piece = slice(start, start + len(at))
                exported.add(key, at, (keys[:, piece], values[:, piece]), dim=1)
                start += len(at)
        for name, state in self._states.items():
            if state.grad is not None:
                self._upper.add(name, self._exit, (state.grad[None],), dim=0)


class _Leave(torch.autograd.Function):
    """Nothing forward; backward, states that left the part get the gradient that is known."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, states: Tensor, gradient: Tensor) -> Tensor:
        """Return the output, and keep the gradient."""
        ctx.save_for_backward(gradient.to(states.dtype))
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the output's gradient as it is, and the states'."""
        (known,) = ctx.saved_tensors
        return gradients[0], known, None


class _Enter(torch.autograd.Function):
    """Nothing forward; backward, a gradient that is known already is added.

    An input of the layer's own graph, so that it also enters where activation checkpointing runs
    the layer again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, gradient: Tensor) -> Tensor:
        """Return the values, and keep the gradient."""
        ctx.save_for_backward(gradient)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return both gradients' sum, rounded once."""
        (known,) = ctx.saved_tensors
        (own,) = gradients
        return (own.to(known.dtype) + known).to(own.dtype), None


def _enter(values: Tensor, gradient: Tensor) -> Tensor:
    found: Tensor = _Enter.apply(values, gradient)  # type: ignore[no-untyped-call]
    return found


class Step(NamedTuple):
    """One thing to do with a part."""

    part: int
    is_export: bool
    """Forward alone; otherwise forward and backward."""


def depth_first(parts: Sequence[ForestPart]) -> Iterator[Step]:
    """Yield what is done with which part, in order."""
    roots = set(range(len(parts))) - {child for part in parts for child in part.children}
    stack = [Step(root, True) for root in sorted(roots, reverse=True)]
    while stack:
        step = stack.pop()
        children = parts[step.part].children
        if step.is_export and children:
            yield step
            stack.append(Step(step.part, False))
            stack += [Step(child, True) for child in reversed(children)]
        else:
            yield Step(step.part, False)
