"""Makes a set of tasks: candidates are tried, and those that make one are written.

    candidate -> trial -> row -> trust -> set

    source = MutationSource(MakeConfig(packages=("inflection==0.5.1",), out=folder), backend)
    result = await make_set(source)

Candidates are started and kept in the order of their source, so that neither speed nor an
interruption changes what the set holds. Not here: the sources (`mutation_source.py`,
`pull_requests/pull_source.py`), the folder (`made_set.py`), what is shown meanwhile
(`make_progress.py`).
"""

from __future__ import annotations

import abc
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import run_all
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.sources.row_set import with_trust, write_visible
from katgym_plugin_swe_factory.checking.trust_levels import measure_levels
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.make_config import SetConfig
from katgym_plugin_swe_factory.making.trial import INFRASTRUCTURE, VALID, Decision, Trial

C = TypeVar("C")
T = TypeVar("T")
Observer = Callable[[str, Trial[Any], bool], None]
"""Called with a candidate's name, what became of it, and whether an earlier run tried it."""
Note = Callable[[str], None]
"""Called with what is done after the last candidate, which takes a while as well."""


class CandidateSource(abc.ABC, Generic[C, T]):
    """Where candidates come from, how one is tried, and how the tasks are kept."""

    config: SetConfig
    backend: SandboxBackend
    identity: Mapping[str, Any]
    """What defines the set: it goes on with the same only."""
    max_faults: ClassVar[int] = 1
    """Candidates that the machine fails to try, in a row, which end the making."""
    left_out: Mapping[str, str] = {}
    """Part of the source that no task can be made of -> why."""

    @abc.abstractmethod
    async def start(self, made: MadeSet) -> None:
        """Learn what trials need; `UsageError` when no task can be made at all."""

    @abc.abstractmethod
    def candidates(self) -> Iterator[C]:
        """Yield the candidates in their order, after `start`."""

    @abc.abstractmethod
    def name_of(self, candidate: C) -> str:
        """Return what people are told that a candidate is."""

    @abc.abstractmethod
    async def decide(self, candidate: C) -> Decision[T]:
        """Try a candidate, unless `MadeSet.recall` knows it.

        What comes of it is the same whatever other candidates are tried meanwhile.
        """

    @abc.abstractmethod
    async def finish(self, decisions: Sequence[tuple[C, Trial[T]]], note: Note) -> Sequence[SweRow]:
        """Write the grader's side of the set; return its rows."""

    async def close(self) -> None:
        """Release what `start` took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeResult(Generic[C, T]):
    """What was made, and what became of every candidate."""

    decisions: tuple[tuple[C, Trial[T]], ...]
    """Candidates in their order."""
    rows: tuple[SweRow, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """As `CandidateSource.left_out`."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the ids of the tasks."""
        return tuple(row.instance_id for row in self.rows)

    @property
    def refusals(self) -> dict[str, int]:
        """Return outcome -> how many candidates it kept from being a task, the most first."""
        counts = Counter(trial.outcome for _, trial in self.decisions if trial.outcome != VALID)
        return dict(counts.most_common())

    @property
    def num_faults(self) -> int:
        """Return how many the machine failed to try; the next run tries them again."""
        return self.refusals.get(INFRASTRUCTURE, 0)


async def make_set(
    source: CandidateSource[C, T],
    observe: Observer = lambda name, trial, is_old: None,
    note: Note = lambda text: None,
) -> MakeResult[C, T]:
    """Make a set, or go on making it; cancelled, it keeps what was decided.

    Raises `UsageError` for a source or folder that cannot be used, `InfrastructureError` when
    sandboxes, index or disk fail.
    """
    config = source.config
    with MadeSet.open(config.out, source.identity, max_faults=source.max_faults) as made:
        try:
            await source.start(made)
            decisions = await _decide_all(source, made, observe)
            rows = await source.finish(decisions, note)
            made_set = await asyncio.to_thread(open_source, config.out)
            ids = [row.instance_id for row in rows]
            levels = await measure_levels(
                made_set, ids, source.backend, num_workers=config.num_workers, note=note
            )
            rows = [with_trust(row, levels.get(row.instance_id)) for row in rows]
            await asyncio.to_thread(write_visible, config.out, rows)
        finally:
            await source.close()
    return MakeResult(decisions=tuple(decisions), rows=tuple(rows), left_out=source.left_out)


async def _decide_all(
    source: CandidateSource[C, T], made: MadeSet, observe: Observer
) -> list[tuple[C, Trial[T]]]:
    """Try candidates until there are enough tasks, and keep what became of them, in their order.

    What was begun is finished. But what is in flight when the last task is found depends on speed:
    nothing of it is kept.
    """
    queue = enumerate(source.candidates())
    waiting: dict[int, tuple[C, Decision[T]]] = {}
    kept: list[tuple[C, Trial[T]]] = []
    num_valid, num_wanted = 0, source.config.num_tasks

    async def work() -> None:
        nonlocal num_valid
        while num_valid != num_wanted and (found := next(queue, None)) is not None:
            number, candidate = found
            decision = await source.decide(candidate)
            waiting[number] = candidate, decision
            observe(source.name_of(candidate), decision.trial, decision.is_old)
            while num_valid != num_wanted and len(kept) in waiting:
                candidate, decision = waiting.pop(len(kept))
                made.keep(decision)
                kept.append((candidate, decision.trial))
                num_valid += decision.trial.outcome == VALID

    await run_all(work() for _ in range(source.config.num_workers))
    return kept
