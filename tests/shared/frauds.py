"""Frauds by name: how a run is forged, and which check has to catch it.

Not here: the frauds (`result_frauds.py`, `claim_frauds.py`, `field_frauds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forgery import (
    Forgery,
)

from katgym.evaluation.verification.report import Verdict
from katgym.policies.hf.hf_policy import HfPolicy


@dataclass
class Runs:
    """Honest runs, by what played them; `tiny` is a model of random weights."""

    folders: dict[str, Path]
    tiny: HfPolicy
    other: HfPolicy
    """Other weights under the same name."""


Edit = Callable[[Forgery, Runs], None]


@dataclass(frozen=True, kw_only=True)
class Fraud:
    """How a run is forged, and the check that has to catch it."""

    edit: Edit
    check: str
    run: str = "random"
    is_patient: bool = True
    verdict: Verdict = Verdict.REFUTED


FRAUDS: dict[str, Fraud] = {}


def fraud(check: str, **more: Any) -> Callable[[Edit], Edit]:
    def add(edit: Edit) -> Edit:
        FRAUDS[edit.__name__] = Fraud(edit=edit, check=check, **more)
        return edit

    return add


def lose(forged: Forgery) -> Iterator[int]:
    """Yield the places of rollouts that earned less than 1."""
    for index, rollout in enumerate(forged.rollouts):
        if rollout.reward.value is not None and rollout.reward.value < 1:
            yield index
