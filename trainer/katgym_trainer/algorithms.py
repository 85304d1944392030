"""Algorithms by name: which loss, on which advantages.

Not here: losses (`losses/`), advantages (`group_advantages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.errors import UnknownNameError, UsageError, check_name, unknown_name
from katgym_trainer.advantages.group_advantages import Advantage
from katgym_trainer.losses.objective import Loss
from katgym_trainer.losses.registry import loss
from katgym_trainer.trainer_config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a name stands for.

    Example:
        Algorithm(loss="gspo", advantage="grpo")
    """

    loss: str
    """Of `katgym_trainer.loss`."""
    advantage: str | None
    """Of `katgym_trainer.group_advantages`; None: the loss looks at none, or the rows bring those
    of a critic (`with_gae`) or of a pair (`preference_rows`)."""


ALGORITHMS = {
    "sft": Algorithm(loss="sft", advantage=None),
    "reinforce": Algorithm(loss="reinforce", advantage="reinforce"),
    "rloo": Algorithm(loss="rloo", advantage="rloo"),
    "grpo": Algorithm(loss="grpo", advantage="grpo"),
    "dr_grpo": Algorithm(loss="dr_grpo", advantage="dr_grpo"),
    "dapo": Algorithm(loss="dapo", advantage="grpo"),
    "gspo": Algorithm(loss="gspo", advantage="grpo"),
    "gspo_token": Algorithm(loss="gspo_token", advantage="grpo"),
    "reinforce_plus_plus": Algorithm(loss="ppo", advantage="reinforce_plus_plus"),
    "reinforce_plus_plus_baseline": Algorithm(loss="ppo", advantage="reinforce_plus_plus_baseline"),
    "cispo": Algorithm(loss="cispo", advantage="grpo"),
    "ppo": Algorithm(loss="ppo", advantage=None),
    "dpo": Algorithm(loss="dpo", advantage=None),
}


def resolve_algorithm(
    name: str, config: TrainerConfig, *, has_teachers: bool = False
) -> tuple[Algorithm, Loss]:
    """Return an algorithm with the config's own advantage, and its loss with the config's options.

    Raises `ValueError` for a name, an option or a value that is not known, and for an advantage
    where none is looked at.
    """
    check_name("algorithm", name, ALGORITHMS)
    found = ALGORITHMS[name]
    if config.advantage is not None:
        if found.advantage is None:
            raise UsageError(
                f"advantage={config.advantage!r} changes nothing; algorithm {name!r} makes none"
            )
        if config.advantage not in list(Advantage):
            raise UnknownNameError(unknown_name("advantage", config.advantage, Advantage))
        found = Algorithm(loss=found.loss, advantage=config.advantage)
    if config.advantage_scaling != "none" and found.loss in ("sft", "dpo"):
        raise UsageError(
            f"advantage_scaling={config.advantage_scaling!r} changes nothing; algorithm {name!r}"
            " weighs nothing by advantages"
        )
    if has_teachers and found.loss in ("sft", "dpo", "gspo"):
        hint = "; 'gspo_token' looks at each token's own" if found.loss == "gspo" else ""
        raise UsageError(
            f"teachers give each token an advantage of its own, which loss {found.loss!r} does not"
            f" look at{hint}"
        )
    chosen = loss(found.loss, **config.loss)
    computed = {"ref_logprobs"} | ({"proximal_logprobs"} if config.num_updates > 1 else set())
    if not computed & set(chosen.needs):
        for option in ("logprob_cache_folder", "logprob_cache_mib"):
            if getattr(config, option) != getattr(TrainerConfig(), option):
                raise UsageError(
                    f"{option}={getattr(config, option)!r} changes nothing; loss {found.loss!r}"
                    " with these options looks at no reference, and not at the trainer before"
                    " several updates"
                )
    return found, chosen
