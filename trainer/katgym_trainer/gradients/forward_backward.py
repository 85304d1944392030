"""One optimizer step's gradient: every forest forward and backward, normalised over all of them.

    forests = pack(rows, max_tokens=32_768)
    metrics = forward_backward(model, forests, loss("dapo"))
    optimizer.step()

Not here: optimizers (`trainer.py`), which rows are packed together (`packing/`).

Letters: N packed tokens, U edges, M occurrences, T tokens of one row, D model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katgym_kernels import edge_logprobs
from katgym_trainer.gradients.forest_runner import ForestRunner, Objective, Outputs
from katgym_trainer.gradients.step_objective import StepLoss, check_groups, needs_all
from katgym_trainer.losses.objective import Loss
from katgym_trainer.losses.scope import Scope
from katgym_trainer.models.tree_model import ReplaysRoutes, TreeModel
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.ranks.ranks import ALONE, Ranks


def forward_backward(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    loss: Loss,
    *,
    backend: str = "auto",
    temperature: float = 1.0,
    scope: Scope | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Add the gradient of the loss over all rows to the parameters' `.grad`; return metrics.

    model: of transformers (with peft adapters or without), or any `TreeModel`.
    forests: of one optimizer step: means are over all of them, whatever the split.
    loss: from `katgym_trainer.loss`.
    backend: of `katgym_kernels.tree_attention`.
    temperature: that the policy sampled with; divides the logits.
    scope: what means are over, where other ranks train more forests: `Scope.of` all of them. None:
        these forests, and those of other `ranks`.
    ranks: who else trains the same sharded model on other forests of this step; all call this. Then
        metrics are those of all, and gradients are means over ranks: they count `ranks.num` times.

    Raises `ValueError` for a model that is not exact on a forest, and for rows that lack what the
    loss needs, before anything is computed.
    """
    if not forests:
        raise ValueError("there are no forests to train on")
    tree_model = as_tree_model(model)

    def check() -> None:
        for forest in forests:
            loss.check(forest)
            check_vocabulary(tree_model, forest)
            check_routes(tree_model, forest)

    ranks.together(check)
    scope = Scope.of(forests, ranks=ranks) if scope is None else scope
    check_groups(loss, scope, forests)
    step = StepLoss(loss, scope)
    runner = logprob_runner(tree_model, backend=backend, temperature=temperature, ranks=ranks)
    with tree_model.prepare():
        objective: Objective = step.of_forest
        if needs_all(loss, scope):
            objective = step.of_all(forests, list(runner.outputs(forests)))
        runner.backward(forests, objective)
    names = ("num_flat", "num_tree", "num_trained", "num_edges")
    counts = {name: sum(getattr(f.stats, name) for f in forests) for name in names}
    counts = ranks.sum({"num_forests": len(forests), **counts})
    shares = {"por": 1 - counts["num_tree"] / counts["num_flat"]}
    if isinstance(tree_model, ReplaysRoutes):
        different, told = tree_model.routing.take_counts()
        routed = ranks.sum({"different": different, "told": told})
        if routed["told"]:
            shares["route_difference"] = routed["different"] / routed["told"]
    return {**step.metrics(ranks), **counts, **shares}


def trainer_logprobs(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    *,
    backend: str = "auto",
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
) -> dict[int, Tensor]:
    """Return the model's log-probs of each row's trained tokens, by the row's place among all.

    float64 [trained tokens], in the row's order; no gradient goes through them. Arguments are those
    of `forward_backward`.
    """
    return _by_row(model, forests, backend=backend, temperature=temperature, ranks=ranks, output=0)


def trainer_entropies(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    *,
    backend: str = "auto",
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
) -> dict[int, Tensor]:
    """Return the entropy, in nats, of what predicts each trained token; see `trainer_logprobs`."""
    return _by_row(model, forests, backend=backend, temperature=temperature, ranks=ranks, output=1)


def as_tree_model(model: torch.nn.Module | TreeModel, *, ranks: Ranks = ALONE) -> TreeModel:
    """Return a model as one that runs on forests; `ValueError` if it would not be exact.

    ranks: over which it is sharded, in place, if there are several.
    """
    if isinstance(model, TreeModel):
        return model
    if ranks.num > 1:
        from katgym_trainer.ranks.sharded_model import ShardedModel  # imports transformers

        return ShardedModel(model, ranks)
    from katgym_trainer.models.hugging_face import HuggingFaceModel  # imports transformers

    return HuggingFaceModel(model)


def check_vocabulary(model: TreeModel, forest: PackedForest) -> None:
    """Raise for a token id that the model does not have."""
    num = len(model.head().weight_VD)
    largest = int(forest.input_ids.max())
    if largest >= num:
        raise ValueError(f"token id {largest} is beyond the model's vocabulary of {num}")


def check_routes(model: TreeModel, forest: PackedForest) -> None:
    """Raise for expert routes that the model does not have, or does not replay."""
    if forest.routes is None:
        return
    if not isinstance(model, ReplaysRoutes):
        raise ValueError(
            f"rows have expert routes, and {type(model).__name__} is a TreeModel that replays none:"
            " give it `routing`, a RoutingReplay, or leave them out (row.replace(routes=None))"
        )
    model.routing.check(forest.routes)


def logprob_runner(
    model: TreeModel, *, backend: str, temperature: float, ranks: Ranks = ALONE
) -> ForestRunner:
    """Return a runner that reads out log-prob and entropy of each edge."""

    def readout(hidden_UD: Tensor, target_U: Tensor) -> Outputs:
        head = model.head()
        weight_VD = head.weight_VD
        hidden_UD = hidden_UD.to(weight_VD.dtype)  # Mamba's residual is float32 in any model
        if head.bias_V is not None:  # as one more column
            hidden_UD = torch.cat([hidden_UD, torch.ones_like(hidden_UD[:, :1])], 1)
            weight_VD = torch.cat([weight_VD, head.bias_V[:, None]], 1)
        if head.scale != 1:
            hidden_UD = hidden_UD * head.scale
        return edge_logprobs(
            hidden_UD, weight_VD, target_U, temperature=temperature, softcap=head.softcap
        )

    return ForestRunner(model, readout, backend=backend, ranks=ranks)


def _by_row(
    model: torch.nn.Module | TreeModel,
    forests: Sequence[PackedForest],
    *,
    backend: str,
    temperature: float,
    ranks: Ranks,
    output: int,
) -> dict[int, Tensor]:
    """Return one of the runner's outputs for each row, by the row's place among all."""
    tree_model = as_tree_model(model)
    for forest in forests:
        check_vocabulary(tree_model, forest)
        check_routes(tree_model, forest)
    runner = logprob_runner(tree_model, backend=backend, temperature=temperature, ranks=ranks)
    with tree_model.prepare():
        return runner.by_row(forests, output=output)
