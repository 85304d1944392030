"""One optimizer step's gradient: every forest forward and backward, normalised over all of them.

    forests = pack(rows, max_tokens=32_768)
    metrics = forward_backward(model, forests, loss("dapo"))
    optimizer.step()

Not here: optimizers, which rows are packed together (`packing.py`).

Letters: N packed tokens, U edges, M occurrences, T tokens of one row, D model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katgym_kernels import edge_logprobs
from katgym_trainer.losses.objective import Loss, Occurrences
from katgym_trainer.losses.scope import Scope
from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.packed_forest import PackedForest


def forward_backward(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    loss: Loss,
    *,
    backend: str = "auto",
    temperature: float = 1.0,
) -> dict[str, float]:
    """Add the gradient of the loss over all rows to the parameters' `.grad`; return metrics.

    model: of transformers (with peft adapters or without), or any `TreeModel`.
    forests: of one optimizer step: means are over all of them, whatever the split.
    loss: from `katgym_trainer.loss`.
    backend: of `katgym_kernels.tree_attention`.
    temperature: that the policy sampled with; divides the logits.

    Raises `ValueError` for a model that is not exact on a forest, and for rows that lack what the
    loss needs, before anything is computed.
    """
    if not forests:
        raise ValueError("there are no forests to train on")
    tree_model = as_tree_model(model)
    for forest in forests:
        loss.check(forest)
        check_vocabulary(tree_model, forest)
    scope = Scope.of(forests)
    sums = _Sums()
    with tree_model.prepared():
        for forest in forests:
            hidden_ND = _hidden(tree_model, forest, backend)
            logprobs_U, entropy_U = _edge_logprobs(tree_model, hidden_ND, forest, temperature)
            occurrences = _occurrences(forest, loss, scope, logprobs_U, entropy_U)
            found = loss.terms(occurrences)
            total = (found.terms * occurrences.factors).sum()
            if not len(found.terms):
                total = 0.0 * hidden_ND.sum()  # nothing is trained, but every rank runs backward
            total.backward()  # type: ignore[no-untyped-call]
            sums.add(occurrences, total.detach(), found.is_clipped, loss)
    return {**sums.metrics(), **_sharing(forests)}


def trainer_logprobs(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    *,
    backend: str = "auto",
    temperature: float = 1.0,
) -> dict[int, Tensor]:
    """Return the model's log-probs of each row's trained tokens, by the row's place among all.

    float64 [trained tokens], in the row's order; no gradient goes through them. Arguments are those
    of `forward_backward`.
    """
    tree_model = as_tree_model(model)
    found: dict[int, Tensor] = {}
    with torch.no_grad(), tree_model.prepared():
        for forest in forests:
            check_vocabulary(tree_model, forest)
            hidden_ND = _hidden(tree_model, forest, backend)
            logprobs_U, _ = _edge_logprobs(tree_model, hidden_ND, forest, temperature)
            logprobs_M = logprobs_U.double().cpu()[forest.occ_edge]
            for number, place in enumerate(forest.rows.tolist()):
                found[place] = logprobs_M[forest.occ_row == number]
    return found


def as_tree_model(model: torch.nn.Module | TreeModel) -> TreeModel:
    """Return a model as one that runs on forests; `ValueError` if it would not be exact."""
    if isinstance(model, TreeModel):
        return model
    from katgym_trainer.models.hugging_face import HuggingFaceModel  # imports transformers

    return HuggingFaceModel(model)


def check_vocabulary(model: TreeModel, forest: PackedForest) -> None:
    """Raise for a token id that the model does not have."""
    num = len(model.head().weight_VD)
    largest = int(forest.input_ids.max())
    if largest >= num:
        raise ValueError(f"token id {largest} is beyond the model's vocabulary of {num}")


def _hidden(model: TreeModel, forest: PackedForest, backend: str) -> Tensor:
    return model.hidden(forest, TreeContext(forest, model.device, backend=backend))


def _edge_logprobs(
    model: TreeModel, hidden_ND: Tensor, forest: PackedForest, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-prob and entropy of each unique edge, [U]."""
    head = model.head()
    hidden_UD = hidden_ND[forest.edge_pred.to(hidden_ND.device)]
    weight_VD = head.weight_VD
    if head.bias_V is not None:  # as one more column
        hidden_UD = torch.cat([hidden_UD, torch.ones_like(hidden_UD[:, :1])], 1)
        weight_VD = torch.cat([weight_VD, head.bias_V[:, None]], 1)
    if head.scale != 1:
        hidden_UD = hidden_UD * head.scale
    return edge_logprobs(
        hidden_UD,
        weight_VD,
        forest.edge_target.to(hidden_ND.device),
        temperature=temperature,
        softcap=head.softcap,
    )


def _occurrences(
    forest: PackedForest, loss: Loss, scope: Scope, logprobs_U: Tensor, entropy_U: Tensor
) -> Occurrences:
    """Gather edges to occurrences; autograd adds the occurrences' gradients up in their edge."""
    edge_M = forest.occ_edge.to(logprobs_U.device)
    logprobs_M = logprobs_U[edge_M]

    def there(values_M: Tensor) -> Tensor:
        return values_M.to(logprobs_M.device, logprobs_M.dtype)

    return Occurrences(
        trainer_logprobs=logprobs_M,
        entropy=entropy_U.detach()[edge_M],
        policy_logprobs=there(forest.occ_policy_logprob),
        advantages=there(forest.occ_advantage),
        factors=there(scope.factors(forest, loss.normaliser)),
        row=forest.occ_row.to(logprobs_M.device),
        num_rows=len(forest.rows),
    )


class _Sums:
    """Adds up over forests what metrics are made of."""

    def __init__(self) -> None:
        self._loss = 0.0
        self._num = 0
        self._clipped: float | None = None
        self._entropy = 0.0
        self._ratios: list[tuple[float, float]] = []

    def add(
        self, occurrences: Occurrences, total: Tensor, is_clipped: Tensor | None, loss: Loss
    ) -> None:
        """Take in one forest."""
        self._loss += float(total)
        self._num += len(occurrences.trainer_logprobs)
        self._entropy += float(occurrences.entropy.sum())
        if is_clipped is not None:
            self._clipped = (self._clipped or 0.0) + float(is_clipped.sum())
        if loss.needs_policy_logprobs:
            log_ratio = occurrences.trainer_logprobs.detach() - occurrences.policy_logprobs
            ratio = torch.exp(log_ratio)
            self._ratios.append((float(ratio.sum()), float((ratio - 1 - log_ratio).sum())))

    def metrics(self) -> dict[str, float]:
        """Return means over the step's trained tokens."""
        num = max(1, self._num)
        found = {"loss": self._loss, "entropy": self._entropy / num}
        if self._clipped is not None:
            found["clip_fraction"] = self._clipped / num
        if self._ratios:
            found["ratio"] = sum(ratio for ratio, _ in self._ratios) / num
            # Of the sampler from the trainer, by an estimate that is never negative
            # (http://joschu.net/blog/kl-approx.html, k3).
            found["policy_kl"] = sum(kl for _, kl in self._ratios) / num
        return found


def _sharing(forests: Sequence[PackedForest]) -> dict[str, float]:
    num_flat = sum(forest.stats.num_flat for forest in forests)
    num_tree = sum(forest.stats.num_tree for forest in forests)
    return {
        "num_forests": len(forests),
        "num_flat": num_flat,
        "num_tree": num_tree,
        "num_trained": sum(forest.stats.num_trained for forest in forests),
        "num_edges": sum(forest.stats.num_edges for forest in forests),
        "por": 1 - num_tree / num_flat,
    }
