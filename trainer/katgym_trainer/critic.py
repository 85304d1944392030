"""A critic: says before each token what return to expect. Trained on forests like the policy.

A value depends on the tokens before it alone, so rows that share a prefix share its values; each
row's own return is what they are compared with. Not here: advantages (`gae.py`).

Letters: U edges, M occurrences, D model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katgym_trainer.config.rules import PositiveOrInf, check_value
from katgym_trainer.gradients.forest_runner import ForestRunner, Outputs
from katgym_trainer.gradients.forward_backward import as_tree_model, check_vocabulary
from katgym_trainer.losses.objective import Mean, Normaliser
from katgym_trainer.losses.scope import Scope
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.packing.packed_forest import PackedForest


class Critic(torch.nn.Module):
    """A model whose last hidden states a linear head turns into values.

    Its parameters are the model's and the head's; the model's own head is not used.
    """

    def __init__(self, model: torch.nn.Module | TreeModel, *, backend: str = "auto") -> None:
        """model: of transformers, or any `TreeModel`; its own, not the policy's.

        The head starts at zero: every value is 0. `ValueError` for a model that is not exact on
        forests.
        """
        super().__init__()
        self._tree_model = as_tree_model(model)
        self._backend = backend
        weight_VD = self._tree_model.head().weight_VD
        if isinstance(model, torch.nn.Module):
            self.model = model
        self.head = torch.nn.Linear(weight_VD.shape[1], 1).to(weight_VD.device, weight_VD.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def values(self, forests: Sequence[PackedForest]) -> dict[int, Tensor]:
        """Return the value before each trained token of each row, by the row's place among all.

        float64 [trained tokens], in the row's order; no gradient goes through them.
        """
        forests = [forest.without_routes() for forest in forests]  # nothing is sampled from it
        for forest in forests:
            check_vocabulary(self._tree_model, forest)
        with self._tree_model.prepare():
            return self._runner().by_row(forests)

    def forward_backward(
        self,
        forests: Sequence[PackedForest],
        *,
        clip: float | None = 0.2,
        scope: Scope | None = None,
    ) -> dict[str, float]:
        """Add the gradient of the value loss to the parameters' `.grad`; return metrics.

            1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2), mean over trained tokens

        V_old and R are the rows' `values` and `returns`. clip: c; None: the first square alone.
        scope: see `forward_backward`. Source of the clip: the code of arXiv 1707.06347
        (github.com/openai/baselines, ppo2).
        """
        if not forests:
            raise ValueError("there are no forests to train on")
        check_value("clip", clip, PositiveOrInf | None)
        forests = [forest.without_routes() for forest in forests]
        for forest in forests:
            for name, known_M in (("returns", forest.occ_return), ("values", forest.occ_value)):
                place = forest.first_row(known_M.isnan())
                if place is not None and (clip is not None or name == "returns"):
                    raise ValueError(
                        f"row {place} has no {name}, which a critic is trained on: see with_gae"
                    )
            check_vocabulary(self._tree_model, forest)
        step = _ValueLoss(clip, Scope.of(forests) if scope is None else scope)
        runner = self._runner()
        with self._tree_model.prepare():
            runner.backward(forests, step.of_forest)
        return step.metrics()

    def _runner(self) -> ForestRunner:
        def readout(hidden_UD: Tensor, target_U: Tensor) -> Outputs:
            values: Tensor = self.head(hidden_UD.to(self.head.weight.dtype))  # see `logprob_runner`
            return (values[:, 0],)

        return ForestRunner(self._tree_model, readout, backend=self._backend)


class _ValueLoss:
    """The value loss of one step, and its metrics."""

    def __init__(self, clip: float | None, scope: Scope) -> None:
        self._clip = clip
        self._scope = scope
        self._loss = 0.0
        self._means = dict.fromkeys(("error", "return", "square", "clipped"), Mean(0.0, 0.0))

    def of_forest(self, forest: PackedForest, edges: Tensor | None, outputs: Outputs) -> Tensor:
        """Return the loss of the occurrences of some edges; an `Objective`."""
        (values_U,) = outputs
        chosen, edge_M = forest.occurrences_of(edges)
        values_M = values_U[edge_M.to(values_U.device)]

        def there(known_M: Tensor) -> Tensor:
            return known_M[chosen].to(values_M.device, values_M.dtype)

        returns_M, factors_M = (
            there(each)
            for each in (forest.occ_return, self._scope.factors(forest, Normaliser.TOKENS))
        )
        errors_M = (values_M - returns_M) ** 2
        is_clipped_M = torch.zeros_like(errors_M)
        if self._clip is not None:
            old_M = there(forest.occ_value)
            held_M = old_M + (values_M - old_M).clamp(-self._clip, self._clip)
            bounded_M = (held_M - returns_M) ** 2
            is_clipped_M = (bounded_M > errors_M).to(errors_M.dtype)
            errors_M = torch.maximum(errors_M, bounded_M)
        total = (errors_M * factors_M).sum() / 2
        self._loss += float(total.detach())
        sums = {
            "error": (values_M - returns_M) ** 2,
            "return": returns_M,
            "square": returns_M**2,
            "clipped": is_clipped_M,
        }
        for name, numbers_M in sums.items():
            self._means[name] += Mean.of(numbers_M)
        return total

    def metrics(self) -> dict[str, float]:
        """Return the loss, and the share of the returns' variance that the values explain."""
        means = {name: mean.total / max(1.0, mean.count) for name, mean in self._means.items()}
        variance = means["square"] - means["return"] ** 2
        return {
            "value_loss": self._loss,
            "value_clip_fraction": means["clipped"],
            "explained_variance": 1 - means["error"] / variance if variance > 0 else 0.0,
        }
