"""Canaries put in together: which can be, and whether each did what is said of it.

Not here: which are worth trying (`canary_study.py`), which are kept (`canary_choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from katgym_envs.swe.canaries import render
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.grading.schedule import overlap
from katgym_envs.swe.hidden import TestFunction, ValidCanary
from katgym_envs.swe.test_run import TestRun


def apart(canaries: Sequence[ValidCanary]) -> list[list[int]]:
    """Split canaries, by number, into runs in which no test and no place is touched twice."""
    batches: list[list[int]] = []
    touched: list[set[str]] = []
    for index, canary in enumerate(canaries):
        place = next(
            (
                i
                for i, nodes in enumerate(touched)
                if not nodes & canary.fails
                and not any(overlap(canary, canaries[other]) for other in batches[i])
            ),
            len(batches),
        )
        if place == len(batches):
            batches.append([])
            touched.append(set())
        batches[place].append(index)
        touched[place] |= canary.fails
    return batches


def with_canaries(files: Mapping[str, bytes], canaries: Sequence[ValidCanary]) -> dict[str, bytes]:
    """Return the test files that these canaries change."""
    return {
        path: render(files[path], [c.spec for c in canaries if c.path == path])
        for path in {c.path for c in canaries}
    }


def broken_promise(
    canary: ValidCanary, run: TestRun, functions: Iterable[TestFunction]
) -> str | None:
    """Return how a canary failed to make its tests fail in a run; None if it did as it is said to.

    Cases are known by their number: a canary in a table changes their names.
    """
    numbers = {
        node: (f.path, f.qualname, number)
        for f in functions
        for number, node in enumerate(f.node_ids())
        if node in canary.fails
    }
    results = run.by_key()
    for node in sorted(canary.fails):
        found = results.get(numbers[node]) if node in numbers else None
        if found is None or found.status is not TestStatus.FAILED:
            status = TestStatus.MISSING if found is None else found.status
            return f"{node} is {status} with it under gold"
        if canary.places and found.place != canary.places.get(node):
            return f"{node} fails at {found.place!r}, not {canary.places.get(node)!r}"
    return None
