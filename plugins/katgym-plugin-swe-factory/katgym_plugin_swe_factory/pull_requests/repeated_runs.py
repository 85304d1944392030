"""Tests sorted by repeated runs before and after a fix: to fix, to keep, flaky.

Not here: running them (`pull_trial.py`), which tests are sound (`making/sound_tests.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from katgym_envs.swe.test_run import TestRun
from katgym_plugin_swe_factory.studies.sound_tests import Name, SoundTests, num_passed, sound_tests


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTests(SoundTests):
    """Every test that is collected with the fix, by what it does on both sides."""

    fail_to_pass: tuple[str, ...]
    """Never passes before, always after."""
    pass_to_pass: tuple[str, ...]

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
    before = num_passed(base)
    found = sound_tests(gold, [n for n, count in before.items() if count < len(base)])
    nodes = [node for function in found.functions for node in function.node_ids()]
    return SortedTests(
        fail_to_pass=tuple(n for n in nodes if not before[n]),
        pass_to_pass=tuple(n for n in nodes if before[n]),
        flaky=found.flaky,
        failing=found.failing,
        functions=found.functions,
    )
