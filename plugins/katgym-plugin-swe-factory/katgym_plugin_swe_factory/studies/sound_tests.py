"""Sound tests: those that pass on correct code in any order and beside any others.

    found = sound_tests(await lab.run_orders(modules))
    parts = random_parts((f.path, f.qualname) for f in found.functions)

Graders spread tests over processes and shuffle them, so a test that passes only after another one
would fail now and then. Not here: running anything.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import TestFunction, split_node_id
from katgym_envs.swe.test_run import TestRun

Name = tuple[str, str]
"""(path, qualname) of a test function."""


class Order(NamedTuple):
    """In which order tests run."""

    seed: int | None = None
    """Shuffles; None keeps pytest's order."""
    is_reversed: bool = False

    def __str__(self) -> str:
        shuffled = "" if self.seed is None else f"shuffled with seed {self.seed}"
        return " and ".join(filter(None, (shuffled, "reversed" * self.is_reversed))) or "in order"


ORDERS = (Order(), Order(is_reversed=True), Order(seed=1))
"""Of the runs of all tests; what needs another test before it fails in the first or the second."""
CANARY_ORDERS = (Order(), Order(is_reversed=True))
"""Of the runs of all tests with canaries among them."""
_PART_SEEDS = (11, 12, 13)
_NUM_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundTests:
    """What runs of the same test modules say of every test.

    A function is known by the number of its cases, so one unsound case makes all of them unsound.
    """

    functions: tuple[TestFunction, ...]
    """The sound ones, in the order of collection."""
    flaky: tuple[str, ...]
    """Node ids of tests that passed in some runs only, or that other runs found unsteady."""
    failing: tuple[str, ...]
    """Node ids of tests that never passed."""


def sound_tests(runs: Sequence[TestRun], unsteady: Collection[str] = ()) -> SoundTests:
    """Return what the runs say; tests in `unsteady` count as flaky."""
    first = runs[0]
    cases: dict[Name, list[str]] = {}
    for result in first.results:
        cases.setdefault((result.path, result.qualname), []).append(result.node_id)
    passed = num_passed(runs)
    seen = Counter(r.node_id for r in first.results)
    flaky = {n for n in seen if n in unsteady or 0 < passed[n] < len(runs)}
    failing = {n for n in seen if not passed[n]}
    bad = flaky | failing | {n for n, count in seen.items() if count > 1}
    return SoundTests(
        functions=tuple(
            TestFunction(
                path=path, qualname=qualname, case_ids=tuple(split_node_id(n)[2] for n in nodes)
            )
            for (path, qualname), nodes in cases.items()
            if not bad & set(nodes)
        ),
        flaky=tuple(sorted(flaky)),
        failing=tuple(sorted(failing)),
    )


def num_passed(runs: Sequence[TestRun]) -> Counter[str]:
    """Return node id -> in how many runs it passed."""
    return Counter(
        node
        for run in runs
        for node, status in run.statuses().items()
        if status is TestStatus.PASSED
    )


def not_passed(runs: Iterable[TestRun]) -> set[str]:
    """Return the node ids of tests that did not pass in one of the runs."""
    return {r.node_id for run in runs for r in run.results if r.status is not TestStatus.PASSED}


def random_parts(names: Iterable[Name]) -> list[tuple[frozenset[Name], int]]:
    """Return parts to run alone, with the seed of their order; every function is in a few.

    A test that needs one other before it gets through all parts once in 500 times.
    """
    ordered = sorted(names)
    parts = []
    for seed in _PART_SEEDS:
        shuffled = random.Random(seed).sample(ordered, len(ordered))
        chosen = [frozenset(shuffled[i::_NUM_PARTS]) for i in range(_NUM_PARTS)]
        parts += [(part, seed) for part in chosen if part]
    return parts
