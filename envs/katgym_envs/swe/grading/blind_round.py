"""Blind round of a grading: FAIL_TO_PASS tests that tell no result, before all others.

Every other round hands the right answers to the code under test, which may try changes of itself
until one gives them. In the blind round no process holds them, none ever did in this grading, and
every test passes: what gold's run of it noted, a patch's run has to note as well. Where trust is
complete it has two parts, as some tests tell a search which change is right, though they assert
nothing: by an exception that ends or comes, a truth that turns around, a value that stands in them.
These run after all others have told their values. Not here: making modules blind
(`canaries/blind.py`), what follows from it (`verdict.py`).
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from katgym.environment.reward import Trust
from katgym.sandbox import SandboxBackend
from katgym.sandbox.base import SandboxError
from katgym_envs.swe.canaries.blind import Raised
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.rendering import render_round
from katgym_envs.swe.grading.rounds import RoundResult, Rounds
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.parse_source import parse_source
from katgym_envs.swe.test_run.inside_program import MET, RAISED

_Place = tuple[str, int]
"""Node id and number of a place."""
_Parts = tuple[str | None, ...]
_by_gold: dict[tuple[str, bool], _Known] = {}
"""What gold notes, by task and whether its trust is complete: it is run once a process."""
_MAX_LETTERS = 5000
_MAX_AGAIN = 3
"""Further runs of gold before trust is complete, or a patch is told that it computes otherwise."""
_PAIR = 3
"""Parts of a note of two values: their texts, and whether they are equal."""
_TOLERANCE = 1e-6
"""Of floats, which tests compare with a tolerance of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindProof:
    """What a patch computed where nothing told it what to compute."""

    num_values: int
    """Places where gold computes something that can be told."""
    missing_places: frozenset[_Place] = frozenset()
    """Where the patch computes otherwise, or nothing."""
    is_complete: bool = False
    """Whether these places are all that the tests assert, each test has some, and nothing else
    tells a search which change is right."""
    known: _Known | None = None
    """What it was compared with."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the node ids of tests with a missing value."""
        return tuple(sorted({node for node, _ in self.missing_places}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a blind round told."""

    notes: Mapping[_Place, list[_Parts]] = field(default_factory=dict)
    """What was noted at each place, in order."""
    gap: str = ""
    """Why it is not all that the tests assert; "" if it is."""

    @classmethod
    def of(cls, results: Iterable[RoundResult], targets: Set[str]) -> _Told:
        """Return what rounds told of some tests."""
        notes: dict[_Place, list[_Parts]] = {}
        untold: set[str] = set()
        gap = ""
        for result in results:
            for node in targets & result.results.keys():
                for number, parts in result.results[node].noted:
                    told = _told(parts, result.raised.get(number))
                    untold |= {node} if None in told else set()
                    notes.setdefault((node, number), []).append(told)
            if not result.is_complete:
                gap = "the tests assert in ways that cannot be hidden"
        notes = {place: told for place, told in notes.items() if not any(None in t for t in told)}
        silent = sorted(targets - {node for node, _ in notes})
        if untold:
            gap = f"{min(untold)} compares what cannot be told"
        elif silent:
            gap = f"{silent[0]} compares nothing"
        return cls(notes=notes, gap=gap)

    def differing(self, other: _Told) -> frozenset[_Place]:
        """Return the places where another run noted something else; of both runs."""
        places = self.notes.keys() | other.notes.keys()
        return frozenset(
            place
            for place in places
            if not _is_same(self.notes.get(place, []), other.notes.get(place, []))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The blind rounds of a task, and what gold tells there."""

    rounds: tuple[Round, ...]
    told: _Told
    is_seen: bool = False
    """Whether all tests tell a search which change is right."""


async def run_blind(
    hidden: HiddenTests, patch: Rounds, gold: Rounds, base: Rounds | None = None
) -> BlindProof:
    """Run the blind rounds of a patch, unless gold notes nothing, and return the proof.

    base: of a task whose trust is complete. Raises what `Rounds.run` raises, and `SandboxError` if
    gold's tests do not come to their end.
    """
    key = hidden.key(), base is not None
    if key not in _by_gold:
        whole = (_blind(hidden),), False
        rounds, is_seen = whole if base is None else await _split(hidden, base, gold)
        told = await _run_gold(hidden, gold, rounds)
        _by_gold[key] = _Known(rounds=rounds, told=told, is_seen=is_seen)
    known = _by_gold[key]
    if not known.told.notes:
        return BlindProof(num_values=0)
    results = await patch.run_in_time(known.rounds, gold)
    told = _Told.of(results, set(hidden.fail_to_pass))
    return BlindProof(
        num_values=len(known.told.notes),
        missing_places=known.told.differing(told),
        is_complete=not known.told.gap and not known.is_seen,
        known=known,
    )


async def excuse_as_gold(proof: BlindProof, hidden: HiddenTests, gold: Rounds) -> BlindProof:
    """Return the proof without places where gold computes otherwise one of the next times."""
    for _ in range(_MAX_AGAIN):
        if proof.missing_places and proof.known is not None:
            again = await _run_gold(hidden, gold, proof.known.rounds)
            unsteady = proof.known.told.differing(again)
            proof = replace(proof, missing_places=proof.missing_places - unsteady)
    return proof


async def measure_trust(task: GradedTask, backend: SandboxBackend) -> tuple[Trust, str]:
    """Return how far verdicts on a task can be trusted, and why not further.

    Complete: the blind modules assert nothing besides what they note, all of it can be told, each
    FAIL_TO_PASS test notes something, gold notes the same each time, and one of these tests at
    least does not tell a search which change is right (see `_split`). Raises as `run_blind`.
    """
    hidden, rng = task.hidden, random.SystemRandom()
    if not hidden.fail_to_pass:
        return Trust.PARTIAL, "there is no test to fix"
    changes = (await asyncio.to_thread(read_candidate, hidden.gold_patch, task)).changes
    on_gold = Rounds(task, changes, backend, limits=None, rng=rng)
    on_base = Rounds(task, {}, backend, limits=None, rng=rng)
    rounds, is_seen = await _split(hidden, on_base, on_gold)
    gold = await _run_gold(hidden, on_gold, rounds)
    if gold.gap:
        return Trust.PARTIAL, gold.gap
    for _ in range(_MAX_AGAIN):
        unsteady = gold.differing(await _run_gold(hidden, on_gold, rounds))
        if unsteady:
            return Trust.PARTIAL, f"{min(unsteady)[0]} computes something else each time"
    if is_seen:
        why = "all tests to fix tell which change is right: by an exception, by yes or no, or by a"
        return Trust.PARTIAL, f"{why} value that stands in them"
    return Trust.COMPLETE, ""


def _shown_values(hidden: HiddenTests, chosen: Round) -> set[str | None]:
    """Return the texts of values that blind modules hold, and of those that anybody guesses."""
    rendered = render_round(hidden, chosen, random.Random(0))
    shown: set[str | None] = {"True", "False", "None", ""}
    for source in (*rendered.files.values(), *rendered.helpers.values()):
        for node in ast.walk(parse_source(source)):
            if isinstance(node, (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set)):
                with contextlib.suppress(ValueError, TypeError):
                    shown.add(repr(ast.literal_eval(node)))
    return shown


def _blind(hidden: HiddenTests) -> Round:
    targets = set(hidden.fail_to_pass)
    graded = (f for f in hidden.functions if not targets.isdisjoint(f.node_ids()))
    functions = frozenset((f.path, f.qualname) for f in graded)
    return Round(functions=functions, canaries=(), is_blind=True)


async def _split(hidden: HiddenTests, base: Rounds, gold: Rounds) -> tuple[tuple[Round, ...], bool]:
    """Return the blind rounds of a task: functions that tell which change is right have the second.

    One round if all of them do, or none does. Also returns whether all do.
    """
    whole = _blind(hidden)
    on_base, on_gold = await base.run_traced(whole), await gold.run_traced(whole)
    _check_finished(on_gold)
    told = await asyncio.to_thread(_telling, hidden, whole, on_base, on_gold)
    later = {(f.path, f.qualname) for f in hidden.functions if not told.isdisjoint(f.node_ids())}
    parts = whole.functions - later, whole.functions & later
    if not all(parts):
        return (whole,), bool(later)
    return tuple(replace(whole, functions=part) for part in parts), False


def _telling(
    hidden: HiddenTests, whole: Round, on_base: RoundResult, on_gold: RoundResult
) -> set[str]:
    """Return the tests to fix that tell a search which of its changes is right.

    Their module meets other exceptions on the base state than on gold, or all that they note
    otherwise is a yes or no, or stands in the modules. All others compute something of which
    nothing but the right answer tells that it is right.
    """
    targets = set(hidden.fail_to_pass)
    base, gold = (_Told.of([result], targets) for result in (on_base, on_gold))
    shown = _shown_values(hidden, whole)
    changed: dict[str, list[int]] = {node: [] for node in targets}
    for node, number in gold.differing(base):
        changed[node].append(number)
    told = set()
    for node, numbers in changed.items():
        notes = [n for i in numbers for n in gold.notes.get((node, i), []) if len(n) != _PAIR]
        if (
            on_base.status(node) is not on_gold.status(node)
            or any(number in (RAISED, MET) or number in on_gold.raised for number in numbers)
            or all(shown.issuperset(note) for note in notes)
        ):
            told.add(node)
    return told


async def _run_gold(hidden: HiddenTests, gold: Rounds, rounds: Sequence[Round]) -> _Told:
    results = await gold.run(rounds)
    for result in results:
        _check_finished(result)
    return _Told.of(results, set(hidden.fail_to_pass))


def _check_finished(result: RoundResult) -> None:
    """Raise `SandboxError` for a round of gold that did not come to its end."""
    if not result.run.is_finished:
        text = result.run.execution.text()[-300:]
        raise SandboxError(f"gold's blind round ended early: {text}")


def _told(parts: _Parts, awaited: Raised | None) -> _Parts:
    """Return what is compared of a note; of an awaited exception, whether it is the right one."""
    if awaited is None or len(parts) != 2 or parts[0] is None or parts[1] is None:
        return tuple(None if part is not None and len(part) > _MAX_LETTERS else part
                     for part in parts)  # fmt: skip
    names = parts[0].split("\n")
    kind = str(not set(awaited.names).isdisjoint(names)) if awaited.names else names[0]
    return (kind, str(re.search(awaited.pattern, parts[1]) is not None))


def _is_same(one: list[_Parts], other: list[_Parts]) -> bool:
    """Return whether a place was passed as often, with equal values, in whatever order."""
    if len(one) != len(other):
        return False
    if one == other or sorted(one, key=repr) == sorted(other, key=repr):
        return True
    return all(_are_equal(a, b) for a, b in zip(one, other, strict=True))


def _are_equal(one: _Parts, other: _Parts) -> bool:
    """Return whether two notes are of equal values, or both of two that are equal to each other."""
    if len(one) == len(other) == _PAIR and one[2] == other[2] == "True" and other[0] == other[1]:
        return True
    return len(one) == len(other) and all(
        a == b or _is_equal(_value(a), _value(b)) for a, b in zip(one, other, strict=True)
    )


def _value(text: str | None) -> Any:
    """Return the value of a literal; a text that is none stays one."""
    try:
        return ast.literal_eval(text or "")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ("~", text)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        try:
            return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2)
        except TypeError:
            return False
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[k], other[k]) for k in one)
    return bool(one == other)
