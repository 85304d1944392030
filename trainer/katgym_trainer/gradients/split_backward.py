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

from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.packing.forest_parts import ForestPart

KeysValues = tuple[Tensor, Tensor]
"""Of one layer: [K, tokens, D] each."""


@dataclass(slots=True)
class Exported:
    """Keys and values of one part's tokens, by layer, and what their gradient has become."""

    kept: dict[int, KeysValues] = field(default_factory=dict)
    gradients: dict[int, KeysValues] = field(default_factory=dict)

    def add(self, layer: int, at: Tensor, gradients: KeysValues) -> None:
        """Add a child's gradients at some of the part's tokens."""
        if layer not in self.gradients:
            keys, values = (
                torch.zeros_like(kept, dtype=torch.promote_types(kept.dtype, torch.float32))
                for kept in self.kept[layer]
            )
            self.gradients[layer] = (keys, values)
        for total, gradient in zip(self.gradients[layer], gradients, strict=True):
            total.index_add_(1, at, gradient.to(total.dtype))


class PartContext(TreeContext):
    """The context of one part: its tokens see their ancestors in it and the whole path above it."""

    def __init__(
        self,
        part: ForestPart,
        live: Mapping[int, Exported],
        *,
        own: Exported | None,
        should_export: bool,
        device: torch.device,
        backend: str,
    ) -> None:
        """live: what the parts on the path exported, by number.

        own: where the part's keys and values go if should_export, else whose gradients enter them;
            None: nothing hangs off this part.
        """
        num = len(part.path_part)
        total = num + len(part.end)
        super().__init__(
            torch.cat([torch.full((num,), total), part.end + num]),
            torch.cat([torch.arange(num), part.position_ids]),
            device=device,
            backend=backend,
            num_above=num,
        )
        self._own, self._should_export = own, should_export
        self._pieces = [
            (live[number], part.path_token[part.path_part == number].to(device))
            for number in dict.fromkeys(part.path_part.tolist())
        ]
        self._above: dict[int, KeysValues] = {}

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
        if self._own is not None and self._should_export:
            self._own.kept[layer] = (k_KND.detach(), v_KND.detach())
        elif self._own is not None and layer in self._own.gradients:
            dk_KND, dv_KND = self._own.gradients[layer]
            k_KND, v_KND = _enter(k_KND, dk_KND), _enter(v_KND, dv_KND)
        if self._pieces:
            # The path's keys and values: the same leaves however often a layer is run.
            if layer not in self._above:
                pieces = [tuple(kept[:, at] for kept in up.kept[layer]) for up, at in self._pieces]
                keys, values = (torch.cat(tensors, 1) for tensors in zip(*pieces, strict=True))
                for leaf in (keys, values):
                    leaf.requires_grad_(not self._should_export)
                self._above[layer] = (keys, values)
            above_k, above_v = self._above[layer]
            k_KND, v_KND = torch.cat([above_k, k_KND], 1), torch.cat([above_v, v_KND], 1)
        return super().attend(q_HND, k_KND, v_KND, layer=layer, **options)

    def relay(self) -> None:
        """Hand the gradients of what is above, after backward, to the parts that hold it."""
        for layer, leaves in self._above.items():
            keys, values = (leaf.grad for leaf in leaves)
            if keys is None or values is None:
                continue
            start = 0
            for exported, at in self._pieces:
                piece = slice(start, start + len(at))
                exported.add(layer, at, (keys[:, piece], values[:, piece]))
                start += len(at)


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
