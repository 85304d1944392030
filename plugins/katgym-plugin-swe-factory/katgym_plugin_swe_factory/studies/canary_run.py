"""Canaries put in together: which can be, and whether each did what is said of it.

Not here: which are worth trying (`canary_study.py`), which are kept (`canary_choice.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

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


async def find_broken(
    canaries: Sequence[ValidCanary],
    functions: Sequence[TestFunction],
    run: Callable[[Sequence[ValidCanary]], Awaitable[TestRun]],
    *,
    failing: Collection[str] = (),
) -> dict[int, str]:
    """Return which of some canaries do not do as they are said to beside all tests, and why.

    Each has to make its own tests fail, and no other: a test may call another one, or find what
    one left that ended early. Who does that is looked for by halves; a test whose own canary is
    put in as well says nothing of it. run: runs all tests with some canaries put in; failing: node
    ids of tests that fail without a canary as well.
    """
    told = await run(canaries)
    broken = {
        number: why
        for number, canary in enumerate(canaries)
        if (why := broken_promise(canary, told, functions)) is not None
    }
    own = {node for canary in canaries for node in canary.fails}
    spoilt = _not_passed(told, functions) - own - set(failing)
    if not spoilt:
        return broken
    if len(canaries) > 1:
        half = len(canaries) // 2
        first = await find_broken(canaries[:half], functions, run, failing=failing)
        rest = await find_broken(canaries[half:], functions, run, failing=failing)
        alone = first | {half + number: why for number, why in rest.items()}
        if alone or broken:
            return alone or broken
    why = f"{min(spoilt)} does not pass beside it under gold"
    return dict.fromkeys(range(len(canaries)), why)


def _not_passed(run: TestRun, functions: Iterable[TestFunction]) -> set[str]:
    results = run.by_key()
    return {
        node
        for function in functions
        for number, node in enumerate(function.node_ids())
        if (found := results.get((function.path, function.qualname, number))) is None
        or found.status is not TestStatus.PASSED
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
