"""Blind round of a grading: FAIL_TO_PASS tests without their expected values, before all others.

Every other round hands the right answers to the code under test, which may try changes of itself
until one gives them. In the blind round no process holds them, and none ever did in this grading:
what gold computes where an expected value was, a patch has to compute as well. Not here: hiding the
values (`canaries/blind.py`), what follows from it (`verdict.py`).
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, replace

from katgym.sandbox.base import SandboxError
from katgym_envs.swe.grading.rounds import RoundResult, Rounds
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests

_Site = tuple[str, int]
"""Node id and number of a hidden value."""
_by_gold: dict[str, _Told] = {}
"""What gold computes, by task: it is run once a process."""
_MAX_LETTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindProof:
    """What a patch computed where expected values were hidden."""

    num_values: int
    """Values that gold computes."""
    missing_sites: frozenset[_Site] = frozenset()
    """Where the patch computes other values, or none."""
    is_complete: bool = False
    """Whether the tests assert nothing else: else a search may tell a fix by what they show."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the node ids of tests with a missing value."""
        return tuple(sorted({node for node, _ in self.missing_sites}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a blind round told."""

    computed: frozenset[_Site]
    """Hidden values that were computed each time."""
    is_complete: bool
    """Whether they are all that the tests assert."""

    @classmethod
    def of(cls, result: RoundResult, targets: set[str]) -> _Told:
        """Return what a round told of some tests."""
        found: dict[_Site, bool] = {}
        for node in targets & result.results.keys():
            for number, text in result.results[node].noted:
                site = (node, number)
                found[site] = found.get(site, True) and _is(result.expected, number, text)
        return cls(
            computed=frozenset(site for site, is_right in found.items() if is_right),
            is_complete=result.is_complete
            and all(found.values())
            and targets == {node for node, _ in found},
        )


async def run_blind(hidden: HiddenTests, patch: Rounds, gold: Rounds) -> BlindProof:
    """Run the blind round of a patch, unless gold computes no hidden value, and return the proof.

    Raises what `Rounds.run` raises, and `SandboxError` if gold's tests do not come to their end.
    """
    targets = set(hidden.fail_to_pass)
    key = _key(hidden)
    if key not in _by_gold:
        _by_gold[key] = await _run_gold(hidden, gold)
    demanded = _by_gold[key].computed
    if not demanded:
        return BlindProof(num_values=0)
    [result] = await patch.run([_blind(hidden)])
    return BlindProof(
        num_values=len(demanded),
        missing_sites=demanded - _Told.of(result, targets).computed,
        is_complete=_by_gold[key].is_complete,
    )


async def excuse_as_gold(proof: BlindProof, hidden: HiddenTests, gold: Rounds) -> BlindProof:
    """Return the proof without values that gold does not compute again: tests that draw inputs."""
    if not proof.missing_sites:
        return proof
    computed = (await _run_gold(hidden, gold)).computed
    return replace(proof, missing_sites=proof.missing_sites & computed)


def _blind(hidden: HiddenTests) -> Round:
    targets = set(hidden.fail_to_pass)
    graded = (f for f in hidden.functions if not targets.isdisjoint(f.node_ids()))
    functions = frozenset((f.path, f.qualname) for f in graded)
    return Round(functions=functions, canaries=(), is_blind=True)


async def _run_gold(hidden: HiddenTests, gold: Rounds) -> _Told:
    [result] = await gold.run([_blind(hidden)])
    if not result.run.is_finished:
        raise SandboxError(f"gold's blind round ended early: {result.run.execution.text()[-300:]}")
    return _Told.of(result, set(hidden.fail_to_pass))


def _is(expected: tuple[object, ...], number: int, text: str | None) -> bool:
    if text is None or len(text) > _MAX_LETTERS or not 0 <= number < len(expected):
        return False
    try:
        return bool(ast.literal_eval(text) == expected[number])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _key(hidden: HiddenTests) -> str:
    digest = hashlib.sha256(hidden.gold_patch.encode())
    for path in sorted({f.path for f in hidden.functions}):
        digest.update(path.encode() + b"\0" + hidden.files[path] + b"\0")
    return f"{hidden.instance_id}:{digest.hexdigest()}"
