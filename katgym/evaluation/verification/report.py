"""The report of a verification: for each check what is verified, not verified, and refuted.

Not here: the checks (`bundle.py`, `restep.py`, `rescore.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rich.text import Text

from katgym.environment.reward import Trust
from katgym.evaluation.statistics.number_text import count_text
from katgym.text_table import TextTable

_SHOWN = 3
"""Findings of a check that the table shows; `--json` has all."""
_LONGEST = 500
"""Characters of a finding that the table shows."""


class Verdict(StrEnum):
    """What is to be believed of a run, or of one check."""

    VERIFIED = "verified"
    INCOMPLETE = "incomplete"
    """Nothing speaks against it, and something could not be verified."""
    REFUTED = "refuted"


@dataclass(slots=True, kw_only=True)
class VerifyCheck:
    """One kind of check, as far as it went.

    Example:
        VerifyCheck(name="episodes", num_verified=9, unverified=["katgym/SWE-v0 t 0: no sandbox"])
    """

    name: str
    num_verified: int = 0
    """Things that hold, mostly rollouts."""
    unverified: list[str] = field(default_factory=list)
    """What could not be verified, and why."""
    refuted: list[str] = field(default_factory=list)
    """What does not hold."""
    notes: list[str] = field(default_factory=list)
    """How it was verified."""

    @property
    def verdict(self) -> Verdict:
        """Return what is to be believed of what was checked."""
        if self.refuted:
            return Verdict.REFUTED
        is_whole = self.num_verified and not self.unverified
        return Verdict.VERIFIED if is_whole else Verdict.INCOMPLETE


@dataclass(slots=True, kw_only=True)
class NotCompared:
    """What playing the rollouts of an env again left open, although their rewards hold.

    Example:
        str(NotCompared(metrics={"churn"}, num_turns=9, num_equal_turns=7)) ==
        "metric churn; what the env said in 2 of 9 turns"
    """

    metrics: set[str] = field(default_factory=set)
    """Components of weight 0 that went otherwise here, or that no replay gave."""
    num_turns: int = 0
    """Of envs that are not deterministic; every turn of the others is compared."""
    num_equal_turns: int = 0
    """Turns whose tool results and observations are the record's; addresses and times aside."""
    num_trust: int = 0
    """Rollouts whose trust, or its reason, went otherwise here."""

    def __str__(self) -> str:
        found, num_open = [], self.num_turns - self.num_equal_turns
        if self.metrics:
            plural = "s" if len(self.metrics) > 1 else ""
            found.append(f"metric{plural} {', '.join(sorted(self.metrics))}")
        if num_open:
            found.append(f"what the env said in {num_open} of {self.num_turns} turns")
        if self.num_trust:
            found.append(f"the trust of {self.num_trust} reward{'s' if self.num_trust > 1 else ''}")
        return "; ".join(found)


POLICY = "policy"
"""The check that the run's policy made its answers; a verified run may lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The answer to `katgym verify`."""

    folder: str
    policy: str
    root: str
    """As it was computed here; "" where that could not be done."""
    num_segments: int
    """Processes that played the run, one after the other."""
    checks: Mapping[str, VerifyCheck]
    """By name, in the order in which they were made."""
    not_compared: Mapping[str, NotCompared] = field(default_factory=dict)
    """By env id."""
    task_trust: Mapping[tuple[str, str], Trust] = field(default_factory=dict)
    """(Env id, task id) -> its trust, as the env says here; tasks without are left out."""

    @property
    def verdict(self) -> Verdict:
        """Return what is to be believed of the run, whoever its policy is."""
        verdicts = {name: check.verdict for name, check in self.checks.items()}
        if Verdict.REFUTED in verdicts.values():
            return Verdict.REFUTED
        verdicts.pop(POLICY, None)
        is_whole = set(verdicts.values()) == {Verdict.VERIFIED}
        return Verdict.VERIFIED if is_whole else Verdict.INCOMPLETE

    @property
    def grounds(self) -> str:
        """Say in a few words what a mark of this run stands on."""
        if self.verdict is not Verdict.VERIFIED:
            episodes = self.checks["episodes"]
            num = episodes.num_verified + len(episodes.unverified) + len(episodes.refuted)
            return f"{self.verdict}; rewards of {episodes.num_verified} of {num}"
        policy = self.checks.get(POLICY)
        is_known = policy is not None and policy.verdict is Verdict.VERIFIED
        return f"rewards; {'policy' if is_known else 'policy not'}"

    @property
    def not_compared_text(self) -> str:
        """Say in one line what was not compared; "" where everything was."""
        found = {env_id: str(each) for env_id, each in self.not_compared.items() if str(each)}
        if len(self.not_compared) == 1:
            return "".join(found.values())
        return "; ".join(f"{env_id}: {text}" for env_id, text in found.items())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "folder": self.folder,
            "policy": self.policy,
            "root": self.root,
            "num_segments": self.num_segments,
            "verdict": str(self.verdict),
            "grounds": self.grounds,
            "checks": {
                name: {
                    "verdict": str(check.verdict),
                    "num_verified": check.num_verified,
                    "unverified": check.unverified,
                    "refuted": check.refuted,
                    "notes": check.notes,
                }
                for name, check in self.checks.items()
            },
            "not_compared": {
                env_id: {**asdict(each), "metrics": sorted(each.metrics)}
                for env_id, each in self.not_compared.items()
            },
        }


def report_table(report: VerifyReport) -> TextTable:
    """Return a table of the checks, the first findings of each with it."""
    styles = {Verdict.VERIFIED: "green", Verdict.INCOMPLETE: "yellow", Verdict.REFUTED: "red"}
    rows = []
    for check in report.checks.values():
        found = [*check.refuted, *check.unverified]
        shown = [*check.notes, *found[:_SHOWN]]
        if len(found) > _SHOWN:
            shown.append(f"and {len(found) - _SHOWN} more (--json)")
        rows.append(
            (
                check.name,
                Text(str(check.verdict), style=styles[check.verdict]),
                count_text(check.num_verified),
                count_text(len(check.unverified)),
                count_text(len(check.refuted)),
                "\n".join(map(_printable, shown)),
            )
        )
    numbers = ("verified", "not", "refuted")
    return TextTable(header=("check", "verdict", *numbers, "what"), rows=rows, right=numbers)


def _printable(finding: str) -> str:
    """Return a finding that may quote anything as text for a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in finding[:_LONGEST])
