"""What three runs before and three after a fix say of every test: to fix, to keep, flaky.

Not here: running them (`pull_trial.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import TestFunction
from katgym_envs.swe.test_run import TestRun

SEEDS = (None, 1, 2)
"""Of the runs on each side; None keeps pytest's order, the others shuffle."""
Name = tuple[str, str]
"""(path, qualname) of a test function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTests:
    """Every test that is collected with the fix, by what it does.

    A function is known by the number of its cases, so one unsound case makes all of them unsound.
    """

    fail_to_pass: tuple[str, ...]
    """Never passes before, always after."""
    pass_to_pass: tuple[str, ...]
    flaky: tuple[str, ...]
    """Passes in some runs of one side only."""
    failing: tuple[str, ...]
    """Never passes after: skipped, broken, or in need of something that is not there."""
    functions: tuple[TestFunction, ...]
    """The sound ones, in the order of collection."""
    durations: dict[Name, float]
    """Seconds of all cases of a function."""

    def names(self, nodes: Collection[str]) -> frozenset[Name]:
        """Return the functions that these tests are cases of."""
        wanted = set(nodes)
        return frozenset((f.path, f.qualname) for f in self.functions if wanted & set(f.node_ids()))

    def without(self, nodes: Collection[str]) -> SortedTests:
        """Return the same less the functions that these tests are cases of."""
        gone = self.names(nodes)
        kept = tuple(f for f in self.functions if (f.path, f.qualname) not in gone)
        left = {node for f in kept for node in f.node_ids()}
        return replace(
            self,
            fail_to_pass=tuple(n for n in self.fail_to_pass if n in left),
            pass_to_pass=tuple(n for n in self.pass_to_pass if n in left),
            functions=kept,
        )

    def without_flaky(self, nodes: Collection[str]) -> SortedTests:
        """Return the same less those functions, with these tests among the flaky."""
        flaky = tuple(sorted({*self.flaky, *nodes}))
        return replace(self.without(nodes), flaky=flaky)


def sort_tests(base: Sequence[TestRun], gold: Sequence[TestRun]) -> SortedTests:
    """Return what the runs of both sides say; they are runs of the same test modules."""
    first = gold[0]
    cases: dict[Name, list[str]] = {}
    durations: dict[Name, float] = {}
    for result in first.results:
        name = (result.path, result.qualname)
        cases.setdefault(name, []).append(result.node_id)
        durations[name] = durations.get(name, 0.0) + result.duration_s
    before, after = _num_passed(base), _num_passed(gold)
    num_seen = Counter(r.node_id for r in first.results)
    nodes = [node for found in cases.values() for node in found]
    flaky = [n for n in nodes if before[n] not in (0, len(base)) or 0 < after[n] < len(gold)]
    failing = [n for n in nodes if not after[n]]
    bad = {*flaky, *failing, *(n for n, num in num_seen.items() if num > 1)}
    sound = {name: found for name, found in cases.items() if not bad & set(found)}
    kept = [node for found in sound.values() for node in found]
    return SortedTests(
        fail_to_pass=tuple(n for n in kept if not before[n]),
        pass_to_pass=tuple(n for n in kept if before[n]),
        flaky=tuple(sorted(set(flaky))),
        failing=tuple(sorted(set(failing))),
        functions=tuple(
            TestFunction(path=path, qualname=qualname, case_ids=tuple(map(case_of, found)))
            for (path, qualname), found in sound.items()
        ),
        durations=durations,
    )


def case_of(node_id: str) -> str:
    """Return the id in brackets, "" without: `t.py::test_a[1-x]` -> `1-x`."""
    name = node_id.split("::", 1)[1] if "::" in node_id else node_id
    start = name.find("[")
    return name[start + 1 : -1] if start >= 0 and name.endswith("]") else ""


def _num_passed(runs: Sequence[TestRun]) -> Counter[str]:
    """Return node id -> in how many runs it passed."""
    return Counter(
        node
        for run in runs
        for node, status in run.statuses().items()
        if status is TestStatus.PASSED
    )
