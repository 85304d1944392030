"""One rank of several: its forests' gradients, summed over all ranks by torch.distributed.

    python tests/trainer/rank_process.py RANK NUM_RANKS FOLDER

Every backward pass takes part in a collective, as those of sharded models do: ranks that run unlike
numbers of them would fail here. Writes FOLDER/RANK.pt: gradients by name of the loss, and how many
forests with rows and backward passes there were. Not here: what is compared (`test_ranks.py`).
"""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import PackedForest, Row, forward_backward, loss
from katgym_trainer.losses.scope import Scope
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.packing.ranks import pack_ranks

LOSSES = ("grpo", "dapo")
COST = CostModel(forest_s=0, token_s=0, pair_s=1, edge_s=0)
MAX_TOKENS = 41


def unlike_rows() -> list[Row]:
    """Return a row of 41 tokens, 861 pairs, and 13 of 11, 66 pairs each: 1 forest and 5."""
    rng = random.Random(0)
    rows = []
    for number, num in enumerate([41] + [11] * 13):
        tokens = [rng.randrange(13) for _ in range(num)]
        tokens[0] = 0 if number == 0 else 1 + number % 12
        rows.append(
            Row(
                tokens,
                [rng.random() < 0.6 for _ in tokens],
                [-3 * rng.random() for _ in tokens],
                advantages=rng.gauss(0, 1),
                weight=rng.choice([1, 2]),
                rollout="one" if number % 5 == 0 else None,
            )
        )
    return rows


def gradient(model: TinyModel) -> Tensor:
    """Return all gradients in one piece, and clear them."""
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def num_held(forests: list[PackedForest]) -> int:
    """Return how many forests have rows."""
    return sum(1 for forest in forests if len(forest.rows))


def main() -> None:
    """Run one rank."""
    rank, num_ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks,
        timeout=timedelta(seconds=600),
    )  # fmt: skip
    ranks = pack_ranks(unlike_rows(), num_ranks=num_ranks, max_tokens=MAX_TOKENS, cost=COST)
    scope = Scope.of([forest for forests in ranks for forest in forests])
    model = TinyModel()
    num_present = []

    def meet(_: Tensor) -> None:
        present = torch.ones(1)
        dist.all_reduce(present)
        num_present.append(int(present))

    model.layers[0].register_post_accumulate_grad_hook(meet)
    found: dict[str, Tensor] = {}
    for name in LOSSES:
        forward_backward(model, ranks[rank], loss(name), scope=scope)
        found[name] = gradient(model)
        dist.all_reduce(found[name])
    assert num_present == [num_ranks] * len(LOSSES) * len(ranks[rank])
    numbers = {"num_held": num_held(ranks[rank]), "num_backward": len(num_present)}
    torch.save({**found, **numbers}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
