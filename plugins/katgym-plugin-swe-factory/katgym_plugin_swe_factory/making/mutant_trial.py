"""Tries one bug: which tests it breaks, whether that makes a task, and what a user would see of it.

    task = await MutantTrial(...).run(mutant)

Not here: which bugs are tried, and in what order (`package_maker.py`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.grading.sharp_canaries import has_safe_canary, sharp_canaries
from katgym_envs.swe.sources.mutation_set import EditedPackage, edit_package
from katgym_envs.swe.sources.package_files import select_graded_files
from katgym_envs.swe.sources.spec_format import TaskSpec, node_ids
from katgym_envs.swe.test_run import TestResult, TestRun
from katgym_plugin_swe_factory.making.byte_edits import edits_between
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.making.visible_tests import HiddenTestError, without_functions
from katgym_plugin_swe_factory.mutation.site import MutationSpec
from katgym_plugin_swe_factory.statements.observed_tests import instrument, read_observation
from katgym_plugin_swe_factory.statements.statement import (
    MAX_EXAMPLES,
    Failure,
    FailureExample,
    example_of,
    is_leaking,
    problem_statement,
)
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.package_study import PackageStudy

StudyFailures = Callable[[Mapping[str, str]], Awaitable[None]]
MAX_BROKEN_SHARE = 0.5
"""A bug that breaks a larger share of all tests is no repair task."""
_NUM_OBSERVED = 8
"""Failing functions that are observed to find examples for the statement."""


class TrialOutcome(StrEnum):
    """What became of a mutant."""

    VALID = "valid"
    SURVIVED = "survived"
    """No test sees it."""
    BROKEN = "broken"
    """The package cannot be imported, or too many tests fail."""
    TIMEOUT = "timeout"
    """It computes for long, or waits for good."""
    UNSTEADY = "unsteady"
    """It breaks other tests in another run."""
    NO_CANARY = "no_canary"
    """None of the tests it breaks has a sound canary where it fails."""
    NO_EXAMPLE = "no_example"
    """No failure can be shown without the test around it, or without giving the fix away."""
    NOT_HIDDEN = "not_hidden"
    """A test it breaks cannot be taken out of the visible files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug: its spec, and what it makes of one file.

    Example:
        Mutant(spec=MutationSpec(file="a.py", operator="...", location="..."), line=4, content=b"")
    """

    spec: MutationSpec
    line: int
    """First line that differs."""
    content: bytes


class MutantTrial:
    """Tries bugs of one package; any number at a time, as many run as the lab has sandboxes."""

    def __init__(
        self, lab: PackageLab, study: PackageStudy, canaries: CanaryStudy, *, seed: int, split: str
    ) -> None:
        self._lab = lab
        self._study = study
        self._canaries = canaries
        self._seed = seed
        self._split = split
        package = lab.tree.package
        self._key = f"{package.name}-{package.version}"
        self._nodes = node_ids(study.tests)
        self._numbers = {node: number for number, node in enumerate(self._nodes)}

    async def run(self, mutant: Mutant, study: StudyFailures) -> TaskSpec:
        """Try one bug; raises `Refused`, and `SandboxError` of the machine.

        study: calls `CanaryStudy.study_failures`, once it is this bug's turn.
        """
        failing = await self._failing(mutant)
        graded, places = await self._find_graded(failing, study)
        # Other tests reach the bug in another process, as tests of a command do, or through what is
        # shared.
        everything = frozenset(self._study.functions.values())
        run = await self._tests(everything, {mutant.spec.file: mutant.content})
        failed = self._find_failed(run)
        if not failing.keys() <= failed.keys():
            raise Refused(TrialOutcome.UNSTEADY)
        failing = {**failed, **failing}
        # The base state is the package with the bug, and without the tests it breaks.
        broken = {self._study.functions[node] for node in failing}
        files = self._lab.tree.files
        tests = {p: c for p, c in select_graded_files(self._lab.tree).items() if p.endswith(".py")}
        try:
            shown = without_functions(tests, sorted(broken))
        except HiddenTestError as e:
            raise Refused(TrialOutcome.NOT_HIDDEN) from e
        changed = {mutant.spec.file: mutant.content, **shown}
        edits = {path: edits_between(files[path], after) for path, after in changed.items()}
        made = edit_package(self._lab.tree, edits)
        statement = await self._statement(mutant, failing, graded, made)
        numbers = sorted(self._numbers[node] for node in graded)
        return TaskSpec(
            id=f"{self._key}-{_short_hash(mutant.spec)}",
            package=self._key,
            split=self._split,
            edits=edits,
            fail_to_pass=tuple(numbers),
            base_places=tuple(places[self._nodes[number]] for number in numbers),
            ungraded=tuple(sorted(self._numbers[node] for node in set(failing) - set(graded))),
            statement=statement,
            workspace_sha256=tree_digest(made.workspace),
            timeout_s=self._lab.timeout_s,
        )

    async def _failing(self, mutant: Mutant) -> dict[str, TestResult]:
        """Return the sound tests the bug breaks, twice and in any order, with how they fail."""
        path = mutant.spec.file
        reach = self._study.reach
        touched = reach.tests_of(path, self._lab.tree.files[path], mutant.line)
        names = frozenset(self._study.functions[node] for node in touched)
        if not names:
            raise Refused(TrialOutcome.SURVIVED)
        put = {path: mutant.content}
        first = await self._tests(names, put)
        failed = self._find_failed(first)
        if not failed:
            raise Refused(TrialOutcome.SURVIVED)
        if len(failed) > MAX_BROKEN_SHARE * len(self._study.functions):
            raise Refused(TrialOutcome.BROKEN)
        again = frozenset(self._study.functions[node] for node in failed)
        second = self._find_failed(await self._tests(again, put, seed=self._seed, is_detailed=True))
        if set(second) != set(failed):
            raise Refused(TrialOutcome.UNSTEADY)
        return second

    async def _tests(
        self,
        names: frozenset[tuple[str, str]],
        put: Mapping[str, bytes],
        *,
        seed: int | None = None,
        is_detailed: bool = False,
    ) -> TestRun:
        run = await self._lab.run(functions=names, put=put, seed=seed, is_detailed=is_detailed)
        if run.is_timed_out:
            raise Refused(TrialOutcome.TIMEOUT, f"stopped by {run.execution.limit_hit}")
        if run.collection_errors or not run.is_finished:
            raise Refused(TrialOutcome.BROKEN)
        return run

    def _find_failed(self, run: TestRun) -> dict[str, TestResult]:
        """Return sound tests that did not pass; a sound test that is gone breaks the mutant."""
        reported = {r.node_id for r in run.results}
        asked = {(r.path, r.qualname) for r in run.results}
        for node, name in self._study.functions.items():
            if name in asked and node not in reported:
                raise Refused(TrialOutcome.BROKEN)
        bad = [r for r in run.results if r.status is not TestStatus.PASSED]
        return {r.node_id: r for r in bad if r.node_id in self._study.functions}

    async def _find_graded(
        self, failing: Mapping[str, TestResult], study: StudyFailures
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the failing tests that have a sound canary, and where each fails."""
        places = {
            node: result.place
            for node, result in failing.items()
            if result.status is TestStatus.FAILED and result.place
        }
        await study(places)
        canaries = self._canaries.canaries_for(places)
        graded = tuple(n for n in places if sharp_canaries(canaries[n], n, places[n]))
        all_canaries = [c for n in graded for c in canaries[n]]
        if not has_safe_canary(all_canaries, {n: places[n] for n in graded}):
            raise Refused(TrialOutcome.NO_CANARY)
        return graded, places

    async def _statement(
        self,
        mutant: Mutant,
        failing: Mapping[str, TestResult],
        graded: Sequence[str],
        made: EditedPackage,
    ) -> str:
        """Return what a user would report; tests that tell it in fewer words come first."""
        # How long tests take counts for nothing: that differs from one making to the next.
        shown = sorted({self._study.functions[node] for node in graded})
        random.Random(self._seed).shuffle(shown)
        examples = await self._examples(mutant, failing, graded, shown[:_NUM_OBSERVED])
        package = self._lab.tree.package
        # Lines of correct code that the bug took away or changed: the text may hold none of them.
        gold: list[str] = []
        for path, content in made.gold_files.items():
            broken = set(made.workspace[path].decode("utf-8", "replace").splitlines())
            fixed = content.decode("utf-8", "replace").splitlines()
            gold += [line.strip() for line in fixed if line not in broken and line.strip()]
        names = {
            part for _, qualname in self._study.functions.values() for part in qualname.split("::")
        }
        for count in range(min(MAX_EXAMPLES, len(examples)), 0, -1):
            seed = int(_short_hash(mutant.spec), 16) + self._seed
            text = problem_statement(
                package.name, package.version, examples[:count], len(failing), seed=seed
            )
            if not is_leaking(text, gold, names):
                return text
        raise Refused(TrialOutcome.NO_EXAMPLE)

    async def _examples(
        self,
        mutant: Mutant,
        failing: Mapping[str, TestResult],
        graded: Sequence[str],
        names: Sequence[tuple[str, str]],
    ) -> list[FailureExample]:
        """Run failing tests again, observed, and return what can be shown of them."""
        chosen: dict[str, str] = {}
        for node in graded:
            name = self._study.functions[node]
            if name in names and sum(self._study.functions[n] == name for n in chosen) < 2:
                chosen[node] = failing[node].place
        sources = {path: self._lab.tree.files[path].decode("utf-8") for path, _ in names}
        targets = {
            path: {
                (self._study.functions[n][1], int(place.split(":", 1)[0]))
                for n, place in chosen.items()
                if self._study.functions[n][0] == path
            }
            for path in sources
        }
        put = {path: instrument(sources[path], targets[path]).encode() for path in sources}
        put[mutant.spec.file] = mutant.content
        run = await self._tests(frozenset(names), put, is_detailed=True)
        results = {r.node_id: r for r in run.results}
        found: list[FailureExample] = []
        for node, place in chosen.items():
            path, qualname = self._study.functions[node]
            seen = read_observation(results[node].message) if node in results else None
            if seen is not None:
                failure = Failure(
                    source=sources[path], qualname=qualname, place=place, observation=seen
                )
                example = example_of(failure)
                if example is not None and example not in found:
                    found.append(example)
        return sorted(found, key=lambda e: (len(e.snippet.lines), len(e.got)))


def _short_hash(spec: MutationSpec) -> str:
    return hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:8]
