"""Runs a model over a forest, whole or in parts, and reads something out of its hidden states.

Not here: what is read out and trained (`forward_backward.py`, `critic.py`).

Letters: N packed tokens, U edges, D model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from katgym_trainer.gradients.split_backward import Exported, PartContext, depth_first
from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.packing.ranks import dummy_forest
from katgym_trainer.ranks.passes import Pass, PassOrder
from katgym_trainer.ranks.ranks import ALONE, Ranks

Outputs = tuple[Tensor, ...]
"""[U] each."""
Readout = Callable[[Tensor, Tensor], Outputs]
"""Of the hidden states that predict [U, D] and the tokens predicted [U]."""
Objective = Callable[[PackedForest, Tensor | None, Outputs], Tensor]
"""Of a forest, the places of some of its edges (None: all) and the outputs there: what backward is
run from, a scalar."""


class ForestRunner:
    """A model on forests, within its `prepare`."""

    def __init__(
        self, model: TreeModel, readout: Readout, *, backend: str, ranks: Ranks = ALONE
    ) -> None:
        """ranks: who else runs the same model, on other forests; all call the same methods."""
        self._model = model
        self._readout = readout
        self._backend = backend
        self._ranks = ranks
        self._context = functools.partial(PartContext, device=model.device, backend=backend)

    def outputs(self, forests: Sequence[PackedForest]) -> Iterator[Outputs]:
        """Yield what is read out at each edge of each forest, without a gradient."""
        num_passes = sum(max(1, len(forest.parts)) for forest in forests)
        order = PassOrder(self._ranks, [Pass.FORWARD] * num_passes)
        for forest in forests:
            with torch.no_grad():
                found = self._outputs(forest, order)
            yield found
        self._run_dummies(order, None)

    def _outputs(self, forest: PackedForest, order: PassOrder) -> Outputs:
        if not forest.parts:
            self._run_dummies(order, Pass.FORWARD)
            return self._read(forest, self._run_decoder(forest))
        found: dict[int, Outputs] = {}
        live: dict[int, Exported] = {}
        for number, is_export in depth_first(forest.parts):
            part = forest.parts[number]
            if number in found:  # its children are done
                del live[number]
                continue
            own = live.setdefault(number, Exported(exits=part.exits)) if is_export else None
            context = self._context(part, live, own=own, should_export=True)
            self._run_dummies(order, Pass.FORWARD)
            found[number] = self._read(part, self._model.hidden(part, context))
        places = torch.cat([forest.parts[number].edges for number in found]).argsort()
        pieces = zip(*found.values(), strict=True)
        return tuple(torch.cat(piece)[places.to(piece[0].device)] for piece in pieces)

    def by_row(self, forests: Sequence[PackedForest], *, output: int = 0) -> dict[int, Tensor]:
        """Return one output of each row's trained tokens, by the row's place among all.

        float64 [trained tokens], in the row's order, on the CPU. Raises `ValueError` for forests of
        several packs, in which places say nothing.
        """
        found: dict[int, Tensor] = {}
        for forest, outputs in zip(forests, self.outputs(forests), strict=True):
            rows = forest.by_row(outputs[output])
            if twice := found.keys() & rows.keys():
                raise ValueError(
                    f"row {min(twice)} is in two forests: these are told by rows' places in"
                    " one pack"
                )
            found |= rows
        return found

    def backward(self, forests: Sequence[PackedForest], objective: Objective) -> None:
        """Add the gradient of the objective of all forests to the parameters."""
        passes = [
            Pass.FORWARD if is_export else Pass.BACKWARD
            for forest in forests
            for _, is_export in (depth_first(forest.parts) if forest.parts else [(0, False)])
        ]
        order = PassOrder(self._ranks, passes)
        for forest in forests:
            if not forest.parts:
                self._run_dummies(order, Pass.BACKWARD)
                self._backward(forest, forest, None, self._run_decoder(forest), objective)
                continue
            live: dict[int, Exported] = {}
            for number, is_export in depth_first(forest.parts):
                part = forest.parts[number]
                self._run_dummies(order, Pass.FORWARD if is_export else Pass.BACKWARD)
                if is_export:
                    live[number] = Exported(exits=part.exits)
                    with torch.no_grad():
                        context = self._context(part, live, own=live[number], should_export=True)
                        self._model.hidden(part, context)
                    continue
                context = self._context(part, live, own=live.get(number), should_export=False)
                hidden_ND = self._model.hidden(part, context)
                context.is_done = True
                self._backward(forest, part, part.edges, hidden_ND, objective)
                context.relay()
                live.pop(number, None)
        self._run_dummies(order, None)

    def _run_dummies(self, order: PassOrder, kind: Pass | None) -> None:
        """Run what other ranks run before this one's next pass, on a token that trains nothing."""
        for found in order.before(kind):
            dummy = dummy_forest()
            with torch.set_grad_enabled(found is Pass.BACKWARD):
                hidden_ND = self._run_decoder(dummy)
            if found is Pass.BACKWARD:
                self._backward(dummy, dummy, None, hidden_ND, _of_nothing)

    def _backward(
        self,
        forest: PackedForest,
        part: PackedForest | ForestPart,
        edges: Tensor | None,
        hidden_ND: Tensor,
        objective: Objective,
    ) -> None:
        if len(part.edge_pred):
            total = objective(forest, edges, self._read(part, hidden_ND))
        else:  # every rank runs backward through all layers, and children's gradients enter there
            total = 0.0 * hidden_ND.sum()
            if self._ranks.num > 1 or not forest.stats.num_edges:  # through the head too
                token = part.input_ids[:1].to(hidden_ND.device)
                total = total + 0.0 * self._readout(hidden_ND[:1], token)[0].sum()
        total.backward()  # type: ignore[no-untyped-call]

    def _run_decoder(self, forest: PackedForest) -> Tensor:
        context = TreeContext(
            forest.end, forest.position_ids, device=self._model.device, backend=self._backend
        )
        return self._model.hidden(forest, context)

    def _read(self, part: PackedForest | ForestPart, hidden_ND: Tensor) -> Outputs:
        device = hidden_ND.device
        return self._readout(hidden_ND[part.edge_pred.to(device)], part.edge_target.to(device))


def _of_nothing(forest: PackedForest, edges: Tensor | None, outputs: Outputs) -> Tensor:
    """Return the objective of a forest without an edge, which nobody asks for."""
    raise AssertionError("a dummy has no edge")
