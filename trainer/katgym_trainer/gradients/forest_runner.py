"""Runs a model over a forest, whole or in parts, and reads something out of its hidden states.

Not here: what is read out and trained (`forward_backward.py`, `critic.py`).

Letters: N packed tokens, U edges, D model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from katgym_trainer.gradients.split_backward import Exported, PartContext, depth_first
from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest

Outputs = tuple[Tensor, ...]
"""[U] each."""
Readout = Callable[[Tensor, Tensor], Outputs]
"""Of the hidden states that predict [U, D] and the tokens predicted [U]."""
Objective = Callable[[PackedForest, Tensor | None, Outputs], Tensor]
"""Of a forest, the places of some of its edges (None: all) and the outputs there: what backward is
run from, a scalar."""


class ForestRunner:
    """A model on forests, within its `prepare`."""

    def __init__(self, model: TreeModel, readout: Readout, *, backend: str) -> None:
        self._model = model
        self._readout = readout
        self._backend = backend
        self._context = functools.partial(PartContext, device=model.device, backend=backend)

    def outputs(self, forest: PackedForest) -> Outputs:
        """Return what is read out at each edge, without a gradient."""
        with torch.no_grad():
            if not forest.parts:
                return self._read(forest, self._run_decoder(forest))
            found: dict[int, Outputs] = {}
            live: dict[int, Exported] = {}
            for number, is_export in depth_first(forest.parts):
                part = forest.parts[number]
                if number in found:  # its children are done
                    del live[number]
                    continue
                own = live.setdefault(number, Exported()) if is_export else None
                context = self._context(part, live, own=own, should_export=True)
                found[number] = self._read(part, self._model.hidden(part, context))
            order = torch.cat([forest.parts[number].edges for number in found]).argsort()
            pieces = zip(*found.values(), strict=True)
            return tuple(torch.cat(piece)[order.to(piece[0].device)] for piece in pieces)

    def by_row(self, forests: Sequence[PackedForest], *, output: int = 0) -> dict[int, Tensor]:
        """Return one output of each row's trained tokens, by the row's place among all.

        float64 [trained tokens], in the row's order, on the CPU. Raises `ValueError` for forests of
        several packs, in which places say nothing.
        """
        found: dict[int, Tensor] = {}
        for forest in forests:
            rows = forest.by_row(self.outputs(forest)[output])
            if twice := found.keys() & rows.keys():
                raise ValueError(
                    f"row {min(twice)} is in two forests: these are told by rows' places in"
                    " one pack"
                )
            found |= rows
        return found

    def backward(self, forest: PackedForest, objective: Objective) -> None:
        """Add the objective's gradient to the parameters."""
        if not forest.parts:
            self._backward(forest, forest, None, self._run_decoder(forest), objective)
            return
        live: dict[int, Exported] = {}
        for number, is_export in depth_first(forest.parts):
            part = forest.parts[number]
            if is_export:
                live[number] = Exported()
                with torch.no_grad():
                    context = self._context(part, live, own=live[number], should_export=True)
                    self._model.hidden(part, context)
                continue
            context = self._context(part, live, own=live.get(number), should_export=False)
            hidden_ND = self._model.hidden(part, context)
            self._backward(forest, part, part.edges, hidden_ND, objective)
            context.relay()
            live.pop(number, None)

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
            if not forest.stats.num_edges:  # through the head too: a rank may hold nothing else
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
