"""Losses by name.

Not here: the losses.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from katgym_trainer.losses.clipped import Cispo, Dapo, DrGrpo, Grpo, Gspo, GspoToken, Ppo
from katgym_trainer.losses.likelihood import Reinforce, Rloo, Sft
from katgym_trainer.losses.objective import Loss
from katgym_trainer.losses.preference import Dpo

LOSSES: dict[str, type[Loss]] = {
    found.name: found
    for found in (Sft, Reinforce, Rloo, Grpo, DrGrpo, Dapo, Gspo, GspoToken, Cispo, Ppo, Dpo)
}


def loss(name: str, **options: Any) -> Loss:
    """Return a loss by its name.

    options: fields of the loss's class, such as `clip_high`.

    Raises `ValueError` for a name or an option that is not known, or a value that is not allowed.
    """
    if name not in LOSSES:
        raise ValueError(f"unknown loss {name!r}{_hint(name, LOSSES)}; allowed: {_list(LOSSES)}")
    found = LOSSES[name]
    known = [field.name for field in dataclasses.fields(found)]
    for option in options:
        if option not in known:
            allowed = _list(known) or "none"
            raise ValueError(
                f"loss {name!r} has no option {option!r}{_hint(option, known)}; allowed: {allowed}"
            )
    return found(**options)


def _hint(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""


def _list(names: Any) -> str:
    return ", ".join(names)
