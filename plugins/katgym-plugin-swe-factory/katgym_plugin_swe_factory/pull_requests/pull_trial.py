"""Tries one pull request: three runs before and after gold, canaries, wrong variants, one grading.

    tried = await PullTrial(pull, backend, config).run()

Raises `Refused` when it makes no task. Not here: the filters before (`pull_filters.py`), the row
(`pull_row.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import Gate, run_all
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.grading.sharp_canaries import has_safe_canary, sharp_canaries
from katgym_envs.swe.hidden import HiddenTests, ValidCanary, split_node_id
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.test_run import TestRun
from katgym_plugin_swe_factory.history.pull_diff import contents
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.mutation.wrong_variants import wrong_variants
from katgym_plugin_swe_factory.pull_requests.generated_tests import refuse_functions
from katgym_plugin_swe_factory.pull_requests.import_config import ModuleScope, TrialConfig
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.repeated_runs import SortedTests, sort_tests
from katgym_plugin_swe_factory.studies.canary_choice import choose_canaries
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy
from katgym_plugin_swe_factory.studies.near_study import NearStudy, failing_tests
from katgym_plugin_swe_factory.studies.package_study import PackageStudy, why_uncollected
from katgym_plugin_swe_factory.studies.pinned_environment import pin_environment
from katgym_plugin_swe_factory.studies.recording import record
from katgym_plugin_swe_factory.studies.sound_tests import ORDERS, not_passed
from katgym_plugin_swe_factory.studies.state_lab import StateLab

_STEADY_ROUNDS = 3
_COLLECTED_AGAIN = 3
"""Runs in which modules that do not collect are found and left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPull:
    """What the runs established of a pull request that makes a task."""

    recipe: EnvironmentRecipe
    """With every requirement pinned."""
    tests: SortedTests
    canaries: tuple[ValidCanary, ...]
    base_places: Mapping[str, str]
    timeout_s: float
    """See `KatgymPart.timeout_s`."""
    validation: Mapping[str, Any] = field(default_factory=dict)

    def make_hidden(self, pull: PreparedPull, instance_id: str, timeout_s: float) -> HiddenTests:
        """Return the grader's side."""
        graded = (*self.tests.fail_to_pass, *self.tests.pass_to_pass)
        names = self.tests.names(graded)
        return HiddenTests(
            instance_id=instance_id,
            gold_patch=pull.patch,
            fail_to_pass=self.tests.fail_to_pass,
            pass_to_pass=self.tests.pass_to_pass,
            files=pull.states.hidden_files,
            executables=pull.states.executables,
            test_modules=tuple(sorted({path for path, _ in names})),
            functions=tuple(f for f in self.tests.functions if (f.path, f.qualname) in names),
            canaries=self.canaries,
            base_places=self.base_places,
            timeout_s=timeout_s,
            gold_files=contents(pull.diff.after, pull.diff.paths.product),
        )


class PullTrial:
    """One pull request while it is tried."""

    def __init__(self, pull: PreparedPull, backend: SandboxBackend, config: TrialConfig) -> None:
        self._pull = pull
        self._states = pull.states
        self._backend = backend
        self._config = config
        self._gate = Gate()

    async def run(self) -> TriedPull:
        """Try it; raises `Refused`, and `SandboxError` and `InfrastructureError` of the machine."""
        recipe = self._pull.recipe
        if recipe.kind == "venv":
            roots = self._states.source_roots()
            try:
                pins, _ = await pin_environment(recipe.requirements, roots)
            except UsageError as e:
                raise Refused("environment", str(e)) from e
            recipe = msgspec.structs.replace(recipe, requirements=pins)
        async with AsyncExitStack() as stack:
            before = await self._open(stack, "before", self._states.before, recipe)
            after = await self._open(stack, "after", self._states.after(recipe), recipe)
            return await self._run(recipe, before, after)

    async def _run(self, recipe: EnvironmentRecipe, before: StateLab, after: StateLab) -> TriedPull:
        modules, first = await self._modules(after)
        gold = [first, *await after.run_orders(modules, ORDERS[1:])]
        _check_gold(gold)
        base = await before.run_orders(modules)
        _check_base(base)
        tests = sort_tests(base, gold)
        recording = await record(after, modules)
        if recording is not None:
            tests = tests.without_flaky(recording.uncertain)
        variants = await self._variants(after, tests)
        tests, refused = self._without_bad_generated(tests, variants)
        if not tests.fail_to_pass:
            raise Refused("no_fail_to_pass", _why_none(tests, refused))
        tests = await self._steady(after, tests)
        # How each test to fix fails without the fix; none for what is not collected.
        run = await before.run(functions=tests.names(tests.fail_to_pass), is_detailed=True)
        failed = [r for r in run.results if r.status is TestStatus.FAILED and r.place]
        base_results = [r for r in failed if r.node_id in set(tests.fail_to_pass)]
        places = {r.node_id: r.place for r in base_results}
        paths = {path for path, _ in tests.names(tests.fail_to_pass)}
        chosen = tuple(f for f in tests.functions if f.path in paths)
        study = PackageStudy.of(replace(tests, functions=chosen))
        canary_study = CanaryStudy(after, study)
        try:
            await canary_study.study(tests.names(tests.fail_to_pass))
        except UsageError as e:
            raise Refused("no_canary", f"a test module cannot be read: {e}") from e
        canaries = canary_study.canaries_of(tests.fail_to_pass)
        tests = _keep_covered(tests, canaries, places)
        if not tests.pass_to_pass:
            raise Refused("no_pass_to_pass", "no test passes both without and with the fix")
        killed = self._check_strength(tests, variants)
        near = NearStudy(canary_study, study, after.tree.files)
        graded = [r for r in base_results if r.node_id in set(tests.fail_to_pass)]
        found = await near.find(failing_tests(self._pull.instance_id, study, graded))
        wanted = {(node, places.get(node, "")) for node in tests.fail_to_pass}
        return TriedPull(
            recipe=recipe,
            tests=tests,
            canaries=(*choose_canaries(list(canaries), wanted), *found),
            base_places={n: p for n, p in places.items() if n in set(tests.fail_to_pass)},
            timeout_s=self._config.timeout_s,
            validation={
                "gold_runs": len(ORDERS),
                "base_runs": len(ORDERS),
                "flaky": list(tests.flaky),
                "mutants_tried": len(variants),
                "mutants_survived": len(variants) - killed,
                "generated_refused": dict(refused),
            },
        )

    async def _open(
        self, stack: AsyncExitStack, name: str, files: Mapping[str, Any], recipe: EnvironmentRecipe
    ) -> StateLab:
        lab = StateLab(
            f"{self._pull.instance_id} {name}", files, recipe, self._backend,
            num_sandboxes=self._config.num_sandboxes,
            timeout_s=self._config.timeout_s, gate=self._gate,
        )  # fmt: skip
        try:
            return await stack.enter_async_context(lab)
        except UsageError as e:
            raise Refused("workspace", str(e)) from e

    async def _modules(self, after: StateLab) -> tuple[tuple[str, ...], TestRun]:
        """Return the test modules to run, those that gold collects, and a first run of them."""
        changed = {p for p in self._pull.diff.paths.tests if p in self._states.hidden_files}
        needed = {p for p in self._states.test_modules if p in changed | self._states.generated}
        is_all = self._config.scope is ModuleScope.ALL
        chosen = tuple(p for p in self._states.test_modules if is_all or p in needed)
        for _ in range(_COLLECTED_AGAIN):
            run = await after.run(files=chosen)
            _check_gold([run])
            if not run.collection_errors:
                return chosen, run
            collected = {r.path for r in run.results}
            chosen = tuple(p for p in chosen if p in collected)
            if not needed & set(chosen):
                why = await why_uncollected(after, min(needed))
                raise Refused("gold_broken", f"its tests do not collect with gold: {why}")
        raise Refused("gold_broken", "which of its test modules collect with gold changes")

    async def _steady(self, after: StateLab, tests: SortedTests) -> SortedTests:
        """Leave out tests that fail with gold when a part of the graded tests runs."""
        for _ in range(_STEADY_ROUNDS):
            names = tests.names((*tests.fail_to_pass, *tests.pass_to_pass))
            runs = await after.run_parts(names)
            _check_gold(runs)
            failing = not_passed(runs)
            if not failing:
                return tests
            tests = tests.without_flaky(failing)
            if not tests.fail_to_pass:
                break
        raise Refused("flaky", "its tests pass with gold in some orders only")

    async def _variants(self, after: StateLab, tests: SortedTests) -> list[frozenset[str]]:
        """Return for each wrong variant of the fix the tests to fix that notice it.

        A variant with which the tests do not run at all is left out: any test would notice it.
        """
        variants = await asyncio.to_thread(
            wrong_variants,
            self._states.base_files,
            {p: e.content for p, e in self._states.gold.items() if e is not None},
            limit=self._config.max_mutants,
            seed=self._config.seed,
        )
        names = tests.names(tests.fail_to_pass)
        if not names:
            return []

        async def one(path: str, content: bytes) -> frozenset[str] | None:
            run = await after.run(functions=names, put={path: content})
            if not run.is_finished or run.collection_errors:
                return None
            status = run.statuses()
            return frozenset(
                n for n in tests.fail_to_pass if status.get(n) is not TestStatus.PASSED
            )

        found = await run_all(one(*variant) for variant in variants)
        return [noticed for noticed in found if noticed is not None]

    def _without_bad_generated(
        self, tests: SortedTests, variants: Sequence[frozenset[str]]
    ) -> tuple[SortedTests, Mapping[str, str]]:
        """Leave out generated tests that fail a gate; return why each did."""
        nodes = (*tests.fail_to_pass, *tests.pass_to_pass, *tests.flaky, *tests.failing)
        of_generated = {n for n in nodes if n.partition("::")[0] in self._states.generated}
        if not of_generated:
            return tests, {}
        functions = {split_node_id(n)[:2] for n in of_generated}
        refused = refuse_functions(
            sorted(functions),
            failing_on_base=tests.names(tests.fail_to_pass),
            sound_on_gold={(f.path, f.qualname) for f in tests.functions},
            killing=tests.names([n for killed in variants for n in killed]),
        )
        gone = [n for n in of_generated if "::".join(split_node_id(n)[:2]) in refused]
        return tests.without(gone), refused

    def _check_strength(self, tests: SortedTests, variants: Sequence[frozenset[str]]) -> int:
        """Return how many variants the graded tests notice; refuse tests that notice too few."""
        graded = set(tests.fail_to_pass)
        killed = sum(bool(noticed & graded) for noticed in variants)
        if variants and killed < self._config.min_killed_share * len(variants):
            raise Refused(
                "weak_tests",
                f"its tests notice {killed} of {len(variants)} wrong variants of the fix, at least"
                f" {self._config.min_killed_share:.0%} are asked",
            )
        return killed


def _check_gold(runs: Sequence[TestRun]) -> None:
    for run in runs:
        if run.is_timed_out:
            raise Refused("timeout", "its tests take too long with gold")
        if not run.is_finished or not (run.results or run.collection_errors):
            said = run.execution.text()[-200:].strip()
            raise Refused("gold_broken", f"its tests do not run to their end with gold: {said}")


def _check_base(runs: Sequence[TestRun]) -> None:
    """Refuse base states that end the tests' process: every test would seem to need the fix."""
    for run in runs:
        if run.is_timed_out:
            raise Refused("timeout", "its tests take too long without gold")
        if not run.is_finished:
            raise Refused("base_broken", "its tests do not run to their end without gold")


def _keep_covered(
    tests: SortedTests, canaries: tuple[ValidCanary, ...], places: Mapping[str, str]
) -> SortedTests:
    """Leave out tests to fix that have no canary: what they report would prove nothing."""
    nodes = tests.fail_to_pass
    graded = tuple(n for n in nodes if sharp_canaries(canaries, n, places.get(n, "")))
    if not has_safe_canary(canaries, {n: places.get(n, "") for n in graded}):
        raise Refused(
            "no_canary",
            f"none of {len(nodes)} tests to fix has a wrong value that fails with gold",
        )
    return replace(tests, fail_to_pass=graded)


def _why_none(tests: SortedTests, refused: Mapping[str, str]) -> str:
    if refused:
        return (
            "no generated test counts: " + "; ".join(f"{n} {w}" for n, w in refused.items())[:300]
        )
    if tests.flaky:
        return f"no test passes with the fix only; {len(tests.flaky)} pass now and then"
    return "no test passes with the fix only"
