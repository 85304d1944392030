"""Blind round of a grading: FAIL_TO_PASS tests without their expected values, before all others.

Every other round hands the right answers to the code under test, which may try changes of itself
until one gives them. In the blind round no process holds them, and none ever did in this grading:
what gold computes where an expected value was, a patch has to compute as well. Not here: hiding the
values (`canaries/blind.py`), what follows from it (`verdict.py`).
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass

from katgym.sandbox.base import SandboxError
from katgym_envs.swe.grading.rounds import RoundResult, Rounds
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests

_Computed = frozenset[tuple[str, int]]
"""Node id and number of a hidden value that was computed each time."""
_by_gold: dict[str, _Computed] = {}
"""What gold computes, by task: it is run once a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindProof:
    """What a patch computed where expected values were hidden."""

    num_values: int
    """Values that gold computes."""
    missing: tuple[str, ...] = ()
    """Node ids of tests where the patch computes other values, or none."""


async def run_blind(hidden: HiddenTests, patch: Rounds, gold: Rounds) -> BlindProof:
    """Run the blind round of a patch, unless gold computes no hidden value, and return the proof.

    Raises what `Rounds.run` raises, and `SandboxError` if gold's tests do not come to their end.
    """
    targets = set(hidden.fail_to_pass)
    chosen = Round(
        functions=frozenset(
            (f.path, f.qualname) for f in hidden.functions if not targets.isdisjoint(f.node_ids())
        ),
        canaries=(),
        is_blind=True,
    )
    key = _key(hidden)
    if key not in _by_gold:
        _by_gold[key] = await _run_gold(gold, chosen, targets)
    demanded = _by_gold[key]
    if not demanded:
        return BlindProof(num_values=0)
    [result] = await patch.run([chosen])
    missing = demanded - _computed(result, targets)
    if missing:  # by a test that draws its inputs, perhaps: gold has to compute them again
        missing &= await _run_gold(gold, chosen, targets)
    return BlindProof(
        num_values=len(demanded), missing=tuple(sorted({node for node, _ in missing}))
    )


async def _run_gold(gold: Rounds, chosen: Round, targets: set[str]) -> _Computed:
    [result] = await gold.run([chosen])
    if not result.run.is_finished:
        raise SandboxError(f"gold's blind round ended early: {result.run.execution.text()[-300:]}")
    return _computed(result, targets)


def _computed(result: RoundResult, targets: set[str]) -> _Computed:
    """Return the hidden values that were noted, and each time as what they are."""
    found: dict[tuple[str, int], bool] = {}
    for node in targets & result.results.keys():
        for number, text in result.results[node].noted:
            site = (node, number)
            found[site] = found.get(site, True) and _is(result.expected, number, text)
    return frozenset(site for site, is_right in found.items() if is_right)


def _is(expected: tuple[object, ...], number: int, text: str | None) -> bool:
    if text is None or not 0 <= number < len(expected):
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
