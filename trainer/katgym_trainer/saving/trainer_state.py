"""State of a trainer in a checkpoint, besides weights, and whether a checkpoint fits a trainer.

Not here: files (`checkpoints.py`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from katgym_trainer.ranks.ranks import whole
from katgym_trainer.saving.checkpoints import Checkpoint, CheckpointError

logger = logging.getLogger(__name__)

_FIXED = ("optimizer", "dtype", "lora_rank", "lora_alpha", "lora_targets")
"""Settings without which the weights or the optimizer's state would mean something else."""
_SAMPLE = 64


def frozen_sha256(model: torch.nn.Module) -> str:
    """Return a digest that tells models apart by the weights that are not trained."""
    return ends_sha256((n, p) for n, p in model.named_parameters() if not p.requires_grad)


def ends_sha256(named_parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of parameters' names, shapes and first and last 64 numbers.

    It is cheap, and blind to a change between them.
    """
    digest = hashlib.sha256()
    for name, parameter in named_parameters:
        flat = whole(parameter.detach()).flatten()
        ends = torch.cat([flat[:_SAMPLE], flat[-_SAMPLE:]]).double().cpu()
        digest.update(f"{name} {list(parameter.shape)}".encode())
        digest.update(ends.numpy().tobytes())
    return digest.hexdigest()


def random_states() -> dict[str, Tensor]:
    """Return the states of torch's global generators, by device."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            found[f"cuda:{number}"] = state
    return found


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Set torch's global generators; log which devices there are none of."""
    torch.set_rng_state(states["cpu"])
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for name in sorted(states.keys() - {"cpu"}):
        number = int(name.partition(":")[2])
        if number < num_devices:
            torch.cuda.set_rng_state(states[name], number)
        else:
            logger.warning("the checkpoint has a random state of %s, which is not here", name)


def check_fits(
    path: Path, checkpoint: Checkpoint, mine: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Raise `CheckpointError` for one that is not of this trainer's model and optimizer.

    mine, weights: this trainer's state and weights. Other settings may differ, and are logged.
    """
    found = checkpoint.state
    for name in _FIXED:
        if found["config"][name] != mine["config"][name]:
            raise CheckpointError(
                f"checkpoint {str(path)!r} was made with {name}={found['config'][name]!r}, this"
                f" trainer has {mine['config'][name]!r}"
            )
    if found["frozen_sha256"] != mine["frozen_sha256"]:
        raise CheckpointError(
            f"checkpoint {str(path)!r} belongs to another model: the weights that are not trained"
            " differ"
        )
    _check_weights(path, checkpoint.weights, weights)
    _log_changes(path, found, mine)


def _log_changes(path: Path, found: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Log which settings are others than a checkpoint's."""
    before = {**found["config"], "algorithm": found["algorithm"]}
    here = {**mine["config"], "algorithm": mine["algorithm"]}
    for name in sorted(before.keys() | here.keys()):
        if before.get(name) != here.get(name):
            logger.warning(
                "checkpoint %s was made with %s=%r; going on with %r",
                path, name, before.get(name), here.get(name),
            )  # fmt: skip


def _check_weights(path: Path, found: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for weights of other names or shapes."""
    for name in sorted(found.keys() ^ mine.keys()):
        whose = "the checkpoint alone" if name in found else "the model alone"
        raise CheckpointError(
            f"checkpoint {str(path)!r} belongs to another model: {whose} has {name!r}"
        )
    for name, tensor in mine.items():
        if found[name].shape != tensor.shape:
            raise CheckpointError(
                f"checkpoint {str(path)!r} belongs to another model: {name!r} has shape"
                f" {list(found[name].shape)}, here it is {list(tensor.shape)}"
            )
