"""Adds near canaries to a set of specs that was made without them, or anew.

    python -m katgym_envs.swe.making.near_upgrade envs/katgym_envs/swe/data/shipped
    python -m katgym_envs.swe.making.near_upgrade FOLDER --package inflection-0.5.1 --tasks 20

It runs each base state once, and the new candidates on correct code; nothing else of the set
changes, and no task is added or lost. FOLDER is `hidden/` of a set that `katgym swe make` wrote.
Not here: finding them (`near_study.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from katgym.concurrency import run_all
from katgym.errors import UsageError, unknown_name
from katgym.sandbox import SandboxBackend, backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.making.canary_choice import canary_spec
from katgym_envs.swe.making.canary_study import CanaryStudy
from katgym_envs.swe.making.lab import Lab
from katgym_envs.swe.making.made_set import write_specs
from katgym_envs.swe.making.near_study import NearStudy, base_failures
from katgym_envs.swe.making.package_study import PackageStudy
from katgym_envs.swe.packages import SourceTree
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.sources.mutation_set import (
    PACKAGES_FOLDER,
    MutationSet,
    open_pinned,
    read_package,
)
from katgym_envs.swe.sources.spec_format import CanarySpec, PackageSpec, TaskSpec


class PinnedLab(Lab):
    """The lab of a package that a set pins: with the very requirements it is graded with."""

    def __init__(
        self, tree: SourceTree, backend: SandboxBackend, spec: PackageSpec, *, num_sandboxes: int
    ) -> None:
        super().__init__(tree, backend, num_sandboxes=num_sandboxes)
        self._pinned = spec

    async def _environment(self) -> tuple[EnvironmentRecipe, str | None]:
        pins = self._pinned.requirements
        python = await asyncio.to_thread(ensure_venv, pins)
        recipe = EnvironmentRecipe(requirements=pins, python_path=self._pinned.python_path)
        return recipe, python


async def with_near_canaries(
    package: PackageSpec,
    tasks: Sequence[TaskSpec],
    sandboxes: SandboxBackend,
    *,
    num_workers: int = 1,
) -> PackageSpec:
    """Return a package with the near canaries of these tasks; those it had of them are dropped."""
    tree = await asyncio.to_thread(open_pinned, package.key, package.sha256)
    async with PinnedLab(tree, sandboxes, package, num_sandboxes=num_workers) as lab:
        study = await _study(lab, package)
        found = await run_all(base_failures(lab, study, task) for task in tasks)
        near = NearStudy(CanaryStudy(lab, study), study, tree.files)
        canaries = await near.find([test for tests in found for test in tests])
    numbers = {node: number for number, node in enumerate(package.node_ids)}
    kept = _without({task.id for task in tasks}, package.canaries)
    fresh = [canary_spec(canary, numbers) for canary in canaries]
    return msgspec.structs.replace(package, canaries=(*kept, *fresh))


def _without(ids: set[str], canaries: Sequence[CanarySpec]) -> list[CanarySpec]:
    """Return canaries that are not near ones of these tasks alone."""
    kept = []
    for canary in canaries:
        left = tuple(i for i in canary.near_for if i not in ids)
        if left or not canary.near_for:
            kept.append(msgspec.structs.replace(canary, near_for=left))
    return kept


async def _study(lab: Lab, package: PackageSpec) -> PackageStudy:
    """Return what the spec says of the tests, with the times of one run on correct code."""
    run = await lab.run(files=tuple(package.tests), timeout_s=package.timeout_s)
    if not run.is_finished:
        raise UsageError(f"{package.key}: its tests do not run to their end on correct code")
    durations: dict[tuple[str, str], float] = {}
    for result in run.results:
        name = (result.path, result.qualname)
        durations[name] = durations.get(name, 0.0) + result.duration_s
    return PackageStudy(
        tests=package.tests,
        flaky=package.flaky,
        failing=(),
        duration_s=run.session_s,
        durations=durations,
        functions={n: (f.path, f.qualname) for f in package.functions for n in f.node_ids()},
    )


def main(arguments: list[str] | None = None) -> int:
    """Upgrade the packages of a folder one after the other; each is written when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, prog="near_upgrade")
    parser.add_argument("folder", type=Path, help="holds specs.jsonl and packages/")
    parser.add_argument("--package", action="append", metavar="KEY", help="only these packages")
    parser.add_argument("--tasks", type=int, help="only so many tasks of each package")
    parser.add_argument("--workers", type=int, default=1, help="sandboxes at a time (1)")
    args = parser.parse_args(arguments)
    source = MutationSet(args.folder)
    keys = sorted({spec.package for spec in source.specs.values()})
    for key in args.package or ():
        if key not in keys:
            raise UsageError(unknown_name("package", key, keys))
    asyncio.run(_upgrade(source, args.package or keys, args.tasks, args.workers))
    return 0


async def _upgrade(
    source: MutationSet, keys: Sequence[str], num_tasks: int | None, num_workers: int
) -> None:
    sandboxes = backend("local")
    try:
        for key in keys:
            began = time.monotonic()
            path = source.folder / PACKAGES_FOLDER / f"{key}.json"
            tasks = [spec for spec in source.specs.values() if spec.package == key][:num_tasks]
            package = await with_near_canaries(
                read_package(path), tasks, sandboxes, num_workers=num_workers
            )
            mode = path.stat().st_mode & 0o777
            write_specs(source.folder, [package], source.specs.values(), mode=mode)
            near = [canary for canary in package.canaries if canary.near_for]
            having = {i for canary in near for i in canary.near_for} & {t.id for t in tasks}
            sys.stdout.write(
                f"{key}: {len(near)} near canaries, {len(having)} of {len(tasks)} tasks have some,"
                f" {time.monotonic() - began:.0f} s\n"
            )
            sys.stdout.flush()
    finally:
        await sandboxes.aclose()


if __name__ == "__main__":
    sys.exit(main())
