"""A loss on the forests of one optimizer step: forest by forest, or over all of them at once.

Most losses' terms depend on nothing outside a row, so a forest at a time is enough. Where a term
needs more than is run at a time (a row in parts, a pair in two forests), all log-probs are computed
first, without a graph; the loss's gradient with respect to each of them is then known, and the
second pass carries it on to the parameters. That is the chain rule, so the gradient is the same.
Not here: formulas (`losses/`), running models (`forest_runner.py`).

Letters: U edges, M occurrences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from katgym_trainer.gradients.forest_runner import Objective, Outputs
from katgym_trainer.losses.objective import MAX_LOG_RATIO, Coupling, Loss, Mean, Occurrences
from katgym_trainer.losses.scope import Scope
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.ranks.ranks import ALONE, Ranks


class StepLoss:
    """A loss over a step's forests, and what is to be told of it."""

    def __init__(self, loss: Loss, scope: Scope) -> None:
        self._loss = loss
        self._scope = scope
        self._total = 0.0
        self._means: dict[str, Mean] = {}

    def of_forest(self, forest: PackedForest, edges: Tensor | None, outputs: Outputs) -> Tensor:
        """Return the loss of the occurrences of some edges; an `Objective`."""
        return self._of(_occurrences(self._loss, self._scope, forest, edges, outputs))

    def of_all(self, forests: Sequence[PackedForest], outputs: Sequence[Outputs]) -> Objective:
        """Return what gives each forest its share of the gradient of the loss over all of them."""
        leaves = [tuple(each.detach().requires_grad_() for each in found) for found in outputs]
        pieces = [
            _occurrences(self._loss, self._scope, forest, None, found)
            for forest, found in zip(forests, leaves, strict=True)
        ]
        # The occurrences of all forests as those of one, their rows numbered on.
        first_rows = [0, *itertools.accumulate(piece.num_rows for piece in pieces)]
        names = (
            "trainer_logprobs", "entropy", "policy_logprobs", "proximal_logprobs", "ref_logprobs",
            "advantages", "factors", "group",
        )  # fmt: skip
        together = Occurrences(
            **{name: torch.cat([getattr(piece, name) for piece in pieces]) for name in names},
            row=torch.cat([piece.row + n for piece, n in zip(pieces, first_rows, strict=False)]),
            num_rows=first_rows[-1],
        )
        total = self._of(together)
        total.backward()  # type: ignore[no-untyped-call]
        gradients = {
            id(forest): tuple(leaf.grad for leaf in found)
            for forest, found in zip(forests, leaves, strict=True)
        }

        def share(forest: PackedForest, edges: Tensor | None, outputs: Outputs) -> Tensor:
            found = outputs[0].new_zeros(())
            for output, gradient in zip(outputs, gradients[id(forest)], strict=True):
                if gradient is not None:
                    chosen = gradient if edges is None else gradient[edges.to(gradient.device)]
                    found = found + (output * chosen).sum()
            return found

        return share

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the loss, and means over the step, of all ranks."""
        totals = ranks.sum({name: mean.total for name, mean in self._means.items()})
        counts = ranks.sum({name: mean.count for name, mean in self._means.items()})
        return {
            **ranks.sum({"loss": self._total}),
            **{name: total / max(1.0, counts[name]) for name, total in totals.items()},
        }

    def _of(self, occurrences: Occurrences) -> Tensor:
        found = self._loss.terms(occurrences)
        total = (found.terms * occurrences.factors).sum()
        self._total += float(total.detach())
        # Of every loss: the entropy, and how far the trainer is from the sampler. policy_kl is that
        # of the sampler from the trainer, by an estimate that is never negative
        # (http://joschu.net/blog/kl-approx.html, k3).
        metrics = {"entropy": Mean.of(occurrences.entropy)}
        log_ratio = occurrences.trainer_logprobs.detach() - occurrences.policy_logprobs
        if len(log_ratio) and not log_ratio.isnan().any():
            log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
            metrics["ratio"] = Mean.of(torch.exp(log_ratio))
            metrics["policy_kl"] = Mean.of(torch.expm1(log_ratio) - log_ratio)
        for name, mean in {**metrics, **found.metrics}.items():
            self._means[name] = self._means.get(name, Mean(0.0, 0.0)) + mean
        return total


def needs_all(loss: Loss, scope: Scope) -> bool:
    """Whether some term depends on tokens that are not run together, on any rank."""
    if loss.coupling is Coupling.TOKEN:
        return False
    return scope.has_parts or (loss.coupling is Coupling.GROUP and scope.has_split_groups)


def check_groups(loss: Loss, scope: Scope, forests: Sequence[PackedForest]) -> None:
    """Raise for a group whose tokens are not all in these forests, if a term depends on them."""
    if loss.coupling is not Coupling.GROUP:
        return
    here = torch.zeros_like(scope.group_tokens)
    for forest in forests:
        here.index_add_(0, scope.occ_group(forest), torch.ones_like(forest.occ_weight))
    spread = torch.nonzero((here > 0) & (here < scope.group_tokens))[:, 0]
    if len(spread):
        raise ValueError(
            f"loss {loss.name!r} needs each group on one rank; group number {int(spread[0])} is on"
            " several"
        )


def _occurrences(
    loss: Loss, scope: Scope, forest: PackedForest, edges: Tensor | None, outputs: Outputs
) -> Occurrences:
    """Gather edges to occurrences; autograd adds the occurrences' gradients up in their edge."""
    logprobs_U, entropy_U = outputs
    if not loss.has_entropy_gradient:
        entropy_U = entropy_U.detach()
    chosen, edge_M = forest.occurrences_of(edges)
    edge_M = edge_M.to(logprobs_U.device)
    logprobs_M, entropy_M = logprobs_U[edge_M], entropy_U[edge_M]

    def there(values_M: Tensor) -> Tensor:
        return values_M[chosen].to(logprobs_M.device, logprobs_M.dtype)

    row_M = forest.occ_row[chosen]
    proximal_M = there(forest.occ_proximal_logprob)
    return Occurrences(
        trainer_logprobs=logprobs_M,
        entropy=entropy_M,
        policy_logprobs=there(forest.occ_policy_logprob),
        proximal_logprobs=torch.where(proximal_M.isnan(), logprobs_M.detach(), proximal_M),
        ref_logprobs=there(forest.occ_ref_logprob),
        advantages=there(forest.occ_advantage),
        factors=there(scope.factors(forest, loss.normaliser)),
        row=row_M.to(logprobs_M.device),
        group=scope.occ_group(forest)[chosen].to(logprobs_M.device),
        num_rows=len(forest.rows),
    )
