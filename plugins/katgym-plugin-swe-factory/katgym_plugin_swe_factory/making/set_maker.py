"""Makes a set of tasks from packages: mutants in turns over the packages, several at a time.

    result = await make_set(MakeConfig(packages=("inflection==0.5.1",), out=Path("tasks")))

The order of mutants depends on packages and seed alone, and mutants are started in that order, so
that neither speed nor an interruption changes what the set holds. Not here: one package
(`package_maker.py`), the folder (`made_set.py`), what is shown meanwhile (`make_progress.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from katgym.environment.task import SPLITS
from katgym.errors import UsageError, unknown_name
from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import run_all
from katgym_envs.swe.packages import SourceTree, open_package
from katgym_envs.swe.sources.spec_format import TaskSpec
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.mutant_trial import Trial, TrialOutcome
from katgym_plugin_swe_factory.making.package_maker import MutantCandidate, PackageMaker

logger = logging.getLogger(__name__)

_TURN = 4
"""Mutants of one package before the next package's turn."""
Observer = Callable[[str, Trial, bool], None]
"""Called with the package, each trial, and whether an earlier run tried it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeConfig:
    """What is made."""

    packages: tuple[str, ...]
    """`NAME==VERSION`, or `NAME` of a known package."""
    out: Path
    num_tasks: int | None = None
    """Stop at so many tasks; None tries every mutant."""
    seed: int = 0
    num_workers: int = 2
    splits: Mapping[str, str] = field(default_factory=dict)
    """Package name -> split; the others have the one of the table, or "train"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeResult:
    """What was made."""

    tasks: tuple[TaskSpec, ...]
    outcomes: Mapping[str, int]
    """Outcome -> number of mutants."""
    refused: Mapping[str, str]
    """Package no task can be made of -> why."""


async def make_set(
    config: MakeConfig,
    *,
    backend: SandboxBackend,
    observe: Observer = lambda package, trial, is_old: None,
) -> MakeResult:
    """Make a set, or go on making it; cancelled, it keeps what was decided.

    Raises `UsageError` for a package that cannot be had and when no package at all can be used,
    `InfrastructureError` when sandboxes, index or disk fail.
    """
    trees = await asyncio.to_thread(_open_all, config)
    identity = {
        "packages": [f"{t.package.name}=={t.package.version}" for t in trees],
        "seed": config.seed,
        "splits": {t.package.name: _split(t, config) for t in trees},
    }
    with MadeSet.open(config.out, identity) as made:
        opened = [
            PackageMaker(
                tree,
                backend,
                made,
                seed=config.seed,
                num_workers=config.num_workers,
                split=_split(tree, config),
            )
            for tree in trees
        ]
        try:
            refused = await _start(opened, made, config)
            makers = [maker for maker in opened if maker.key not in refused]
            await _try_all(makers, config, observe)
            result = _result(makers, config, refused)
            specs, kept = [], set[str]()
            for maker in makers:
                tasks = [task for task in result.tasks if task.package == maker.key]
                if tasks:
                    spec, steady = await maker.finish(tasks)
                    specs += [spec] if steady else []
                    kept |= {task.id for task in steady}
            result = replace(result, tasks=tuple(t for t in result.tasks if t.id in kept))
            await asyncio.to_thread(made.finish, specs, result.tasks)
            return result
        finally:
            for maker in opened:
                await maker.close()


def _open_all(config: MakeConfig) -> list[SourceTree]:
    for name, split in config.splits.items():
        if split not in SPLITS:
            raise UsageError(f"split of {name!r}: {unknown_name('split', split, SPLITS)}")
    trees = [open_package(package) for package in config.packages]
    names = Counter(tree.package.name for tree in trees)
    for name, count in names.items():
        if count > 1:
            raise UsageError(f"package {name!r} is named {count} times")
    for name in config.splits:
        if name not in names:
            raise UsageError(unknown_name("package", name, names))
    if not trees:
        raise UsageError("name at least one package")
    return trees


def _split(tree: SourceTree, config: MakeConfig) -> str:
    return config.splits.get(tree.package.name, tree.package.split)


async def _start(makers: list[PackageMaker], made: MadeSet, config: MakeConfig) -> dict[str, str]:
    """Study the packages; return those that cannot be used, with the reason."""
    slots = asyncio.Semaphore(config.num_workers)
    refused: dict[str, str] = {}

    async def start(maker: PackageMaker) -> None:
        async with slots:
            try:
                await maker.start(made.entries)
            except UsageError as e:
                logger.warning("package is left out: %s", e)
                refused[maker.key] = str(e)

    await run_all(start(maker) for maker in makers)
    if len(refused) == len(makers):
        raise UsageError("; ".join(refused.values()))
    return dict(sorted(refused.items()))


def _in_order(makers: list[PackageMaker]) -> Iterator[tuple[PackageMaker, MutantCandidate]]:
    """Yield all candidates, a few of each package in turns."""
    start = 0
    while any(start < len(m.candidates) for m in makers):
        for maker in makers:
            for candidate in maker.candidates[start : start + _TURN]:
                yield maker, candidate
        start += _TURN


async def _try_all(makers: list[PackageMaker], config: MakeConfig, observe: Observer) -> None:
    """Try candidates in order until there are enough tasks; what was begun is finished."""
    queue = _in_order(makers)
    num_valid = 0

    async def work() -> None:
        nonlocal num_valid
        while config.num_tasks is None or num_valid < config.num_tasks:
            try:
                maker, candidate = next(queue)
            except StopIteration:
                return
            is_old = maker.trial_of(candidate) is not None
            trial = await maker.try_candidate(candidate)
            num_valid += trial.outcome is TrialOutcome.VALID
            observe(maker.key, trial, is_old)

    await run_all(work() for _ in range(config.num_workers))


def _result(
    makers: list[PackageMaker], config: MakeConfig, refused: Mapping[str, str]
) -> MakeResult:
    """Return the first tasks in the order of candidates, no two with the same base state."""
    tasks: list[tuple[PackageMaker, TaskSpec]] = []
    outcomes: Counter[str] = Counter()
    seen: set[str] = set()
    counted: dict[str, list[MutantCandidate]] = {maker.key: [] for maker in makers}
    num_valid = 0
    for maker, candidate in _in_order(makers):
        # What was in flight when the last task was found depends on speed, and counts for nothing.
        if config.num_tasks is not None and num_valid >= config.num_tasks:
            break
        trial = maker.trial_of(candidate)
        if trial is None:
            continue
        counted[maker.key].append(candidate)
        outcomes[trial.outcome] += 1
        num_valid += trial.outcome is TrialOutcome.VALID
        task = trial.task
        if task is not None and task.workspace_sha256 not in seen:
            seen.add(task.workspace_sha256)
            tasks.append((maker, task))
    return MakeResult(
        tasks=tuple(maker.add_validation(task, counted[maker.key]) for maker, task in tasks),
        outcomes=dict(outcomes),
        refused=refused,
    )
