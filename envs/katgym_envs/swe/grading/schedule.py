"""Secret schedule of a grading: tests and canaries by round.

Code under test shares a process with the tests that judge it, so whatever that process reports can
be forged. What it cannot know is which tests are meant to fail. In every round each graded test is
there at most once, EITHER as itself OR as a canary - the same test with a wrong expected value -
decided by a coin; a forger has to guess all coins. Not here: rendering canaries (`canaries/`),
running rounds (`rounds.py`), what follows from the results (`verdict.py`).

It does not protect against code that knows the right answers (memorised, or computed by another
way): to know which expected values are right is to know the solution.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from katgym_envs.swe.canaries.altered import altered_tests
from katgym_envs.swe.grading.sharp_canaries import TURNED, sharp_canaries
from katgym_envs.swe.hidden import HiddenTests, ValidCanary

MIN_ROUNDS, MAX_ROUNDS = 2, 10
GUESS_BITS = 9.5
"""A forger who guesses is right about once in 2^10 gradings."""
NO_SAFE_CANARY = "all its canaries can be told by their form"
"""Why a task is refused that the blind round does not cover either."""
_MAX_DECOYS = 24
_LAST_RESORTS = (TURNED | {"to_none"}, TURNED)
"""Kinds that are drawn if a test has no others: `None` is told from any other value, and a result
that claims to equal everything fails an assertion that is turned around, as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pytest process: the functions that run, and the canaries that are put in."""

    functions: frozenset[tuple[str, str]]
    """(path, qualname)."""
    canaries: tuple[ValidCanary, ...]
    """Their `fails` are disjoint."""
    altered: frozenset[str] = frozenset()
    """Tests that its canaries alter, those that fail with one among them."""
    is_blind: bool = False
    """Whether the modules are without their expected values (`blind_round.py`)."""

    def canary_of(self, node_id: str) -> ValidCanary | None:
        """Return the canary that makes a test fail in this round, or None."""
        return next((c for c in self.canaries if node_id in c.fails), None)

    def is_itself(self, node_id: str) -> bool:
        """Return whether a test is in this round, if it is in it, as it was written."""
        return node_id not in self.altered and self.canary_of(node_id) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All rounds of one grading."""

    rounds: tuple[Round, ...]
    guess_bits: float
    """-log2 of the chance that a forger who guesses is right; 0 if all canaries can be told.

    Of a test with n canaries that differ, no more than log2(n + 1): who picks one of n + 1 values
    for the right one needs no luck with coins. That a test is free in a round in which another
    one's canary alters it is not counted.
    """
    uncovered: tuple[str, ...] = ()
    """FAIL_TO_PASS tests without a canary; a report of theirs proves nothing."""


@dataclass
class _Draft:
    """A round that is being drawn."""

    canaries: list[ValidCanary] = field(default_factory=list)
    wanted: dict[str, None] = field(default_factory=dict)
    """FAIL_TO_PASS tests that are to be canaries."""
    reals: set[str] = field(default_factory=set)
    """Tests that no canary of theirs is put in for; another's may alter them."""
    fails: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)
    """Those of `fails` among them."""
    functions: set[tuple[str, str]] = field(default_factory=set)

    def can_take(self, canary: ValidCanary) -> bool:
        """Return whether a canary can be put in beside what is drawn already."""
        if canary.fails & self.fails or canary.fails & self.reals:
            return False
        return not any(overlap(canary, other) for other in self.canaries)

    def take(self, canary: ValidCanary, altered: frozenset[str]) -> None:
        """Put a canary in, which alters some tests."""
        self.canaries.append(canary)
        self.fails |= canary.fails
        self.altered |= altered

    def is_itself(self, node: str) -> bool:
        """Return whether a FAIL_TO_PASS test is in the round as it was written."""
        return node in self.reals and node not in self.altered


@dataclass
class _Drawn:
    """The canaries that were drawn so far."""

    used: set[int] = field(default_factory=set)
    num_near: Counter[str] = field(default_factory=Counter)
    num_far: Counter[str] = field(default_factory=Counter)
    """How many a test got."""

    def draw(self, node: str, fitting: Sequence[ValidCanary], rng: random.Random) -> ValidCanary:
        """Return one of some canaries: near and far ones in turn, a coin says which comes first.

        Wrong values on both sides of the right one: no threshold of likeness tells them from it.
        """
        lead = self.num_near[node] - self.num_far[node]
        is_near = lead < 0 or (lead == 0 and rng.getrandbits(1) == 1)
        sided = [c for c in fitting if bool(c.near_for) is is_near] or list(fitting)
        chosen = rng.choice([c for c in sided if id(c) not in self.used] or sided)
        self.used.add(id(chosen))
        for name in chosen.fails:
            (self.num_near if chosen.near_for else self.num_far)[name] += 1
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Courses:
    """What a test may be in each round: a canary in `min_canaries` of them at least.

    It is itself in one of the first two, so that a grading can end there when nothing passes.
    """

    num_groups: int
    """Tests whose coins are their own."""
    num_rounds: int
    min_canaries: int

    @classmethod
    def for_groups(cls, num_groups: int) -> _Courses:
        """Return the fewest rounds that give `GUESS_BITS`, with as many canaries as they allow.

        More canaries are worth a coin's bit: who can tell some wrong values from right ones has
        to tell all that are drawn.
        """
        if not num_groups:
            return cls(num_groups=0, num_rounds=1, min_canaries=0)
        for num_rounds in range(MIN_ROUNDS, MAX_ROUNDS + 1):
            for least in range(num_rounds - 1, 0, -1):
                found = cls(num_groups=num_groups, num_rounds=num_rounds, min_canaries=least)
                if found.guess_bits >= GUESS_BITS:
                    return found
        return cls(num_groups=num_groups, num_rounds=MAX_ROUNDS, min_canaries=1)

    @property
    def guess_bits(self) -> float:
        """Return -log2 of the chance to guess every group's course."""
        return self.num_groups * self.bits_of_one

    @property
    def bits_of_one(self) -> float:
        """Return -log2 of the chance to guess the course of one group."""
        # Courses with so many canaries, and not two in the first two rounds.
        num = sum(
            math.comb(self.num_rounds, k) - (math.comb(self.num_rounds - 2, k - 2) if k > 1 else 0)
            for k in range(self.min_canaries, self.num_rounds + 1)
        )
        return math.log2(num) if num else 0.0

    def draw(self, rng: random.Random) -> list[bool]:
        """Return in which rounds a test is a canary; each course is equally likely."""
        if not self.num_groups:
            return [False] * self.num_rounds
        while True:
            course = [bool(rng.getrandbits(1)) for _ in range(self.num_rounds)]
            if sum(course) >= self.min_canaries and not all(course[:2]):
                return course


def overlap(one: ValidCanary, other: ValidCanary) -> bool:
    """Return whether two canaries change the same place of a module."""
    if one.path != other.path:
        return False
    return any(a[0] <= b[1] and b[0] <= a[1] for a in _edits(one.spec) for b in _edits(other.spec))


def _edits(spec: Mapping[str, object]) -> list[tuple[int, int]]:
    edits = spec.get("edits")
    return [(edit[0], edit[1]) for edit in edits] if isinstance(edits, (list, tuple)) else []


def altered_by(canary: ValidCanary, hidden: HiddenTests) -> frozenset[str]:
    """Return the graded tests that a canary alters, those that fail with it among them."""
    functions = [f for f in hidden.functions if f.path == canary.path]
    edits = _edits(canary.spec)
    return canary.fails | altered_tests(hidden.files[canary.path], edits, functions)


def draw_schedule(hidden: HiddenTests, rng: random.Random) -> Schedule:
    """Return a schedule in which every graded test is itself at least once.

    Every FAIL_TO_PASS test with a canary is a canary at least once, too, and a coin decides each
    time. `rng` is a `random.SystemRandom` but in tests.
    """
    targets = list(hidden.fail_to_pass)
    choices = {node: _canaries_for(node, hidden) for node in targets}
    groups: dict[frozenset[int], list[str]] = {}
    for node in targets:
        far = [c for c in choices[node] if not c.near_for]
        groups.setdefault(frozenset(map(id, far or choices[node])), []).append(node)
    distinct = [
        max(_num_safe(choices[node]) for node in nodes) for key, nodes in groups.items() if key
    ]
    safe = [num for num in distinct if num]
    courses = _Courses.for_groups(len(safe) or len(distinct))
    drafts = [_Draft() for _ in range(courses.num_rounds)]
    for key, nodes in groups.items():
        for draft, is_canary in zip(drafts, courses.draw(rng), strict=True):
            (draft.wanted if is_canary and key else draft.reals).update(dict.fromkeys(nodes))
    drawn = _Drawn()
    for draft in drafts:
        _put_in_canaries(draft, choices, drawn, hidden, rng)
    _repair(drafts, targets, choices, hidden)
    functions = {node: (f.path, f.qualname) for f in hidden.functions for node in f.node_ids()}
    for draft in drafts:
        draft.functions |= {functions[node] for node in targets if node in functions}
    _spread_others(hidden, drafts, functions, rng)
    return Schedule(
        rounds=tuple(
            Round(
                functions=frozenset(d.functions),
                canaries=tuple(d.canaries),
                altered=frozenset(d.altered),
            )
            for d in drafts
        ),
        guess_bits=sum(min(courses.bits_of_one, math.log2(1 + num)) for num in safe),
        uncovered=tuple(node for node in targets if not choices[node]),
    )


def _canaries_for(node: str, hidden: HiddenTests) -> list[ValidCanary]:
    """Return the sharp canaries of a FAIL_TO_PASS test: plausible values only, if it has any."""
    found = sharp_canaries(hidden.own_canaries, node, hidden.base_places.get(node, ""))
    for kinds in _LAST_RESORTS:
        better = [c for c in found if c.spec.get("kind") not in kinds]
        if better:
            return better
    return found


def _num_safe(canaries: Sequence[ValidCanary]) -> int:
    """Return how many different canaries there are that cannot be told by their form."""
    return len({repr(c.spec.get("edits")) for c in canaries if c.spec.get("kind") not in TURNED})


def _put_in_canaries(
    draft: _Draft,
    choices: Mapping[str, Sequence[ValidCanary]],
    drawn: _Drawn,
    hidden: HiddenTests,
    rng: random.Random,
) -> None:
    """Give each test that is to be a canary one, if it can a new one; else it is itself."""
    order = list(draft.wanted)
    rng.shuffle(order)
    # Tests without near canaries may share one of the others: it has to be free for all of them.
    order.sort(key=lambda node: any(c.near_for for c in choices[node]))
    for node in order:
        if node in draft.fails:
            continue
        fitting = [c for c in choices[node] if draft.can_take(c)]
        if fitting:
            chosen = drawn.draw(node, fitting, rng)
            draft.take(chosen, altered_by(chosen, hidden))
        else:
            draft.reals.add(node)


def _repair(
    drafts: list[_Draft],
    targets: Sequence[str],
    choices: Mapping[str, Sequence[ValidCanary]],
    hidden: HiddenTests,
) -> None:
    """Add rounds until each FAIL_TO_PASS test is itself once, and a canary once if it has one.

    Needed when canaries that alter several tests got in each other's way.
    """
    while True:
        no_canary = [n for n in targets if choices[n] and not any(n in d.fails for d in drafts)]
        no_real = [n for n in targets if not any(d.is_itself(n) for d in drafts)]
        if not no_canary and not no_real:
            return
        draft = _Draft()
        if not no_canary:
            draft.reals |= set(no_real)
        for node in no_canary:
            fitting = [c for c in choices[node] if draft.can_take(c)]
            if node not in draft.fails and fitting:
                draft.take(fitting[0], altered_by(fitting[0], hidden))
        draft.reals |= set(targets) - draft.fails
        drafts.append(draft)


def _spread_others(
    hidden: HiddenTests,
    drafts: list[_Draft],
    functions: Mapping[str, tuple[str, str]],
    rng: random.Random,
) -> None:
    """Give every other graded function a round as itself, and some another one as a canary."""
    wanted = set(hidden.pass_to_pass)
    others = {
        (f.path, f.qualname): f.node_ids()
        for f in hidden.functions
        if wanted.intersection(f.node_ids())
    }
    lone = [name for name in others if name not in drafts[0].functions]
    rng.shuffle(lone)
    first = drafts[:2]  # what runs first, so that a grading that ends early has seen them all
    for number, name in enumerate(lone):
        turn = [first[(number + i) % len(first)] for i in range(len(first))] + list(drafts[2:])
        nodes = set(others[name])
        draft = next((d for d in turn if not nodes & d.altered), turn[0])
        draft.reals |= nodes - draft.fails
        draft.functions.add(name)
    _add_decoys(hidden, set(lone), drafts, functions, rng)
    for name, all_nodes in others.items():
        for node in all_nodes:
            if not any(name in d.functions and node not in d.altered for d in drafts):
                free = next((d for d in drafts if node not in d.altered), None)
                if free is None:  # canaries of others alter it in every round
                    free = _Draft(functions=set(drafts[0].functions))
                    drafts.append(free)
                free.functions.add(name)


def _add_decoys(
    hidden: HiddenTests,
    lone: set[tuple[str, str]],
    drafts: Sequence[_Draft],
    functions: Mapping[str, tuple[str, str]],
    rng: random.Random,
) -> None:
    """Put canaries of PASS_TO_PASS tests among the rounds, one a function at most.

    They alter no test that is there as itself.
    """
    done: set[tuple[str, str]] = set()
    order = list(hidden.own_canaries)
    rng.shuffle(order)
    for canary in order:
        names = {functions[node] for node in canary.fails if node in functions}
        if not names or not names <= lone or names & done or len(done) >= _MAX_DECOYS:
            continue
        altered = altered_by(canary, hidden)
        free = [
            d
            for d in drafts
            if d.can_take(canary) and not names & d.functions and not altered & d.reals
        ]
        if free:
            draft = rng.choice(free)
            draft.take(canary, altered)
            draft.functions |= names
            done |= names
