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
from katgym_trainer.plans.plans_ahead import Piece, PlansAhead, plans_of
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
        self._context = functools.partial(PartContext, backend=backend)

    def outputs(self, forests: Sequence[PackedForest]) -> Iterator[Outputs]:
        """Yield what is read out at each edge of each forest, without a gradient."""
        num_passes = sum(max(1, len(forest.parts)) for forest in forests)
        order = PassOrder(self._ranks, [Pass.FORWARD] * num_passes)
        with self._plans_ahead(forests) as ahead:
            for forest in forests:
                with torch.no_grad():
                    found = self._outputs(forest, order, ahead)
                yield found
        self._run_dummies(order, None)

    def _outputs(self, forest: PackedForest, order: PassOrder, ahead: PlansAhead) -> Outputs:
        if not forest.parts:
            self._run_dummies(order, Pass.FORWARD)
            return self._read(forest, self._run_decoder(forest, ahead))
        found: dict[int, Outputs] = {}
        live: dict[int, Exported] = {}
        for number, is_export in depth_first(forest.parts):
            part = forest.parts[number]
            if number in found:  # its children are done
                del live[number]
                continue
            own = live.setdefault(number, Exported(exits=part.exits)) if is_export else None
            context = self._context(part, ahead.take(part), live, own=own, should_export=True)
            self._run_dummies(order, Pass.FORWARD)
            hidden_ND = self._model.hidden(part, context)
            ahead.start()
            found[number] = self._read(part, hidden_ND)
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
        with self._plans_ahead(forests) as ahead:
            for forest in forests:
                if forest.parts:
                    self._backward_in_parts(forest, objective, order, ahead)
                    continue
                self._run_dummies(order, Pass.BACKWARD)
                hidden_ND = self._run_decoder(forest, ahead)
                self._backward(forest, forest, None, hidden_ND, objective)
        self._run_dummies(order, None)

    def _backward_in_parts(
        self, forest: PackedForest, objective: Objective, order: PassOrder, ahead: PlansAhead
    ) -> None:
        live: dict[int, Exported] = {}
        for number, is_export in depth_first(forest.parts):
            part = forest.parts[number]
            self._run_dummies(order, Pass.FORWARD if is_export else Pass.BACKWARD)
            if is_export:
                live[number] = Exported(exits=part.exits)
            plans, own = ahead.take(part, is_last=not is_export), live.get(number)
            context = self._context(part, plans, live, own=own, should_export=is_export)
            with torch.set_grad_enabled(not is_export):
                hidden_ND = self._model.hidden(part, context)
            ahead.start()
            if is_export:
                continue
            context.is_done = True
            self._backward(forest, part, part.edges, hidden_ND, objective)
            context.relay()
            live.pop(number, None)

    def _plans_ahead(self, forests: Sequence[PackedForest]) -> PlansAhead:
        """Return the plans of what is run, in the order in which it is run first."""
        pieces: list[Piece] = []
        for forest in forests:
            numbers = dict.fromkeys(number for number, _ in depth_first(forest.parts))
            pieces += [forest.parts[number] for number in numbers] or [forest]
        return PlansAhead(pieces, device=self._model.device)

    def _run_dummies(self, order: PassOrder, kind: Pass | None) -> None:
        """Run what other ranks run before this one's next pass, on a token that trains nothing."""
        for found in order.before(kind):
            dummy = dummy_forest()
            with torch.set_grad_enabled(found is Pass.BACKWARD):
                hidden_ND = self._run_decoder(dummy, None)
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

    def _run_decoder(self, forest: PackedForest, ahead: PlansAhead | None) -> Tensor:
        """ahead: what has the forest's plans; None makes them."""
        plans = ahead.take(forest) if ahead else plans_of(forest, self._model.device)
        hidden_ND = self._model.hidden(forest, TreeContext(plans, backend=self._backend))
        if ahead:
            ahead.start()
        return hidden_ND

    def _read(self, part: PackedForest | ForestPart, hidden_ND: Tensor) -> Outputs:
        device = hidden_ND.device
        return self._readout(hidden_ND[part.edge_pred.to(device)], part.edge_target.to(device))


def _of_nothing(forest: PackedForest, edges: Tensor | None, outputs: Outputs) -> Tensor:
    """Return the objective of a forest without an edge, which nobody asks for."""
    raise AssertionError("a dummy has no edge")
