"""Grades a patch: policy, fresh sandboxes, rounds with canaries, verdict.

    report = await grade(GradedTask.load(source, instance_id), patch, backend=backend)

Whoever calls this has killed the agent's sandbox before, and keeps the report away from the policy:
it names hidden tests. Not here: the stages themselves (`candidate.py`, `schedule.py`, `rounds.py`,
`verdict.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from katgym.environment.reward import Trust
from katgym.errors import KatgymError
from katgym.sandbox import SandboxBackend, SandboxLimits, WorkspaceDiff
from katgym_envs.swe.grading.blind_round import BlindProof, excuse_as_gold, run_blind
from katgym_envs.swe.grading.candidate import CandidatePatch, read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.report import GradeReport, Outcome
from katgym_envs.swe.grading.rounds import BrokenRound, RoundResult, Rounds, excuse_as_on_base
from katgym_envs.swe.grading.schedule import NO_SAFE_CANARY, draw_schedule
from katgym_envs.swe.grading.verdict import is_decided, judge
from katgym_envs.swe.patching.failure import printable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderConfig:
    """How patches are graded."""

    limits: SandboxLimits | None = None
    """Of each round's sandbox; the wall limit is the task's. None: `SandboxLimits()`."""
    num_parallel: int = 1
    """Rounds of one grading at a time. More than one is quicker and weaker: rounds that run at once
    share a machine, and code that signals through it (locks on system files, load) can compare what
    two of them expect. Grade several patches at a time instead."""
    rng: random.Random | None = None
    """Draws coins and names; for tests only. None: the system's, which nobody can predict."""


async def grade(
    task: GradedTask,
    patch: str | bytes | WorkspaceDiff,
    *,
    backend: SandboxBackend,
    config: GraderConfig | None = None,
) -> GradeReport:
    """Return the report on a unified diff, or on the changes of a workspace.

    Never raises for anything a patch does. After a fault of the sandboxes it tries once more. If
    that fails too, gold is graded: if it fails alike the outcome is `infra_error`, which is no
    verdict; else the patch broke its sandboxes, `failed`. A failing test is never tried again.
    Cancelled, it leaves nothing running.
    """
    config = config or GraderConfig()
    started = time.perf_counter()
    candidate = await asyncio.to_thread(read_candidate, patch, task)
    if candidate.rejected:
        path, why = next(iter(candidate.rejected.items()))
        text = f"{path!r}: {why}" if path else why
        report = _report(task, candidate, Outcome.PATCH_INVALID, text)
    elif not candidate.changes:
        text = "every change was dropped" if candidate.dropped else "nothing is changed"
        report = _report(task, candidate, Outcome.PATCH_EMPTY, text)
    else:
        report = await _grade_despite_faults(task, candidate, backend, config)
    return replace(report, wall_s=time.perf_counter() - started, sandbox=dict(backend.provenance()))


class _Fault(Exception):
    """The machinery failed, so nothing is known about the patch."""


async def _grade_despite_faults(
    task: GradedTask, candidate: CandidatePatch, backend: SandboxBackend, config: GraderConfig
) -> GradeReport:
    proofs: list[BlindProof] = []
    try:
        return await _grade_once(task, candidate, backend, config, proofs)
    except _Fault as e:
        _log.warning("grading %s: %s; trying once more", task.instance_id, e)
    try:
        return await _grade_once(task, candidate, backend, config, proofs)
    except _Fault as e:
        fault = e
    if isinstance(fault.__cause__, BrokenRound):
        try:
            gold = await asyncio.to_thread(read_candidate, task.hidden.gold_patch, task)
            await _grade_once(task, gold, backend, config, [])
        except _Fault:
            _log.warning("grading %s: gold fails alike", task.instance_id)
        else:
            text = f"its code breaks the sandbox, gold does not: {fault}"
            return _report(task, candidate, Outcome.FAILED, text)
    return _report(task, candidate, Outcome.INFRA_ERROR, str(fault))


async def _grade_once(
    task: GradedTask,
    candidate: CandidatePatch,
    backend: SandboxBackend,
    config: GraderConfig,
    proofs: list[BlindProof],
) -> GradeReport:
    """`proofs` takes the blind round's, and holds it when this is the second try."""
    rng = config.rng or random.SystemRandom()
    schedule = draw_schedule(task.hidden, rng)
    if schedule.uncovered and not task.is_unsafe_allowed:
        names = ", ".join(schedule.uncovered[:3])
        raise _Fault(f"no canary for {len(schedule.uncovered)} FAIL_TO_PASS tests ({names})")
    gold = await asyncio.to_thread(read_candidate, task.hidden.gold_patch, task)
    rounds, on_gold, on_base = (
        Rounds(task, changes, backend, limits=config.limits, rng=rng)
        for changes in (candidate.changes, gold.changes, {})
    )
    pending, results = list(schedule.rounds), list[RoundResult]()
    size = max(2, config.num_parallel)  # the first two hold every test as itself
    try:
        if not proofs:  # there is no blind round after one that shows expected values
            base = on_base if task.trust is Trust.COMPLETE else None
            proofs.append(await run_blind(task.hidden, rounds, on_gold, base))
        [proof] = proofs
        is_weak = not schedule.guess_bits and not proof.is_complete
        if is_weak and not task.is_unsafe_allowed:
            raise _Fault(NO_SAFE_CANARY)
        is_trusted = proof.is_complete and task.trust is Trust.COMPLETE
        if not is_trusted:
            rounds.watched = on_gold.watched = tuple(candidate.changes)
        while pending and not is_decided(task.hidden, results):
            for result in await rounds.run_in_time(
                pending[:size], on_gold, num_parallel=config.num_parallel
            ):
                to_keep = task.hidden.pass_to_pass
                results.append(await excuse_as_on_base(result, to_keep, on_base))
            pending = pending[size:]
            await asyncio.sleep(0)
        reached: list[str] = []
        if judge(task.hidden, results).outcome is Outcome.RESOLVED:
            proof = await excuse_as_gold(proof, task.hidden, on_gold)
            reached = await _beyond_gold(results, on_gold)
    except KatgymError as e:  # the patch has no part in it: it is data until a round has started
        is_told = isinstance(e, BrokenRound)
        raise _Fault(str(e) if is_told else f"{type(e).__name__}: {e}") from e
    verdict = judge(task.hidden, results, proof.missing)
    report = _report(task, candidate, verdict.outcome, verdict.reason)
    odd = [f"{node}: passed in one round, not in another" for node in verdict.inconsistent]
    odd += [f"{node}: has no canary, its report proves nothing" for node in schedule.uncovered]
    if is_weak:
        odd.append(NO_SAFE_CANARY)
    return replace(
        report,
        fail_to_pass=verdict.fail_to_pass,
        pass_to_pass=verdict.pass_to_pass,
        num_canaries=sum(len(r.round.canaries) for r in results),
        canaries_passed=verdict.canaries_passed,
        suspicions=(*report.suspicions, *odd),
        num_blind_values=proof.num_values,
        trust=Trust.WITHHELD if reached else Trust.COMPLETE if is_trusted else Trust.PARTIAL,
        trust_reason=reached[0] if reached else "",
        num_rounds=len(results),
        tests_s=sum(r.run.session_s for r in results),
    )


async def _beyond_gold(results: Sequence[RoundResult], gold: Rounds) -> list[str]:
    """Return by which events watched modules reached beyond the product where gold does not.

    A process that has the patch's code in it told them: other modules than those watched are none.
    """
    found = {(path, what) for r in results for path, what in r.run.reached if path in gold.watched}
    if not found:
        return []
    # The first two rounds hold every test as itself.
    own = await gold.run([replace(r.round, canaries=()) for r in results[:2]])
    usual = {event for r in own for _, event in r.run.reached}
    beyond = sorted((path, what) for path, what in found if what not in usual)
    return [printable(f"{path}: {what}, which gold does not") for path, what in beyond]


def _report(
    task: GradedTask, candidate: CandidatePatch, outcome: Outcome, reason: str
) -> GradeReport:
    return GradeReport(
        instance_id=task.instance_id,
        outcome=outcome,
        reason=printable(reason),
        dropped_paths={printable(path): why for path, why in candidate.dropped.items()},
        rejected_paths={printable(path): why for path, why in candidate.rejected.items()},
        suspicions=tuple(map(printable, candidate.suspicions)),
    )
