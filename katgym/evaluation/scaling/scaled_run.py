"""Plays a plan with test-time scaling: attempts, filter, choice, criticism and retry.

    RUN/            a run of one rollout a task: the chosen attempt with its verified reward, and in
                    its artifacts (`test_time_scaling`) how it was chosen and what all of it cost
    RUN/attempts    the attempts, a run like any other: the chosen one has the same session id there
    RUN/steps       a store of retries, criticisms and judgements, each a session of its own

A second call goes on: attempts and steps that are there are not played again. Not here: what a
chooser sees (`candidates.py`), what is asked (`questions.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from katgym.environment.env import Env
from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.errors import PolicyError, UsageError
from katgym.evaluation.plan import EvalConfig, Plan, ScalingConfig, rollout_key
from katgym.evaluation.run import EvalResult, Watch, play_run, watch_nothing, write_summary
from katgym.evaluation.run_folders import RUNS, default_folder
from katgym.evaluation.scaling.candidates import (
    Candidate,
    count_votes,
    filter_candidates,
    find_problem,
    read_candidate,
)
from katgym.evaluation.scaling.questions import (
    QuestionEnv,
    critic_prompt,
    judge_prompt,
    note_of,
    read_criticism,
    read_judgement,
)
from katgym.evaluation.statistics.attempts import SCALING
from katgym.evaluation.store import PlanStore, open_run, read_rollouts
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import Policy
from katgym.policies.uri import policy as make_policy
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import has_valid_reward
from katgym.rollout_store.rollouts import as_rollout, as_session
from katgym.system.concurrency import run_all

ATTEMPTS = "attempts"
STEPS = "steps"
_OF_GRADING = (FailureKind.VERIFIER_UNAVAILABLE, FailureKind.SCORER_ERROR)


async def evaluate_scaled(
    config: EvalConfig, folder: Path | None = None, *, watch: Watch = watch_nothing
) -> EvalResult:
    """Play what is missing of a configuration with `tts`, as `evaluate` does without.

    watch: as in `evaluate`, for the attempts. Raises `PolicyError`, too, when a judge or a critic
    cannot be asked.
    """
    plan, judge = Plan.of(config), None
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(aclosing(make_policy(config.policy)))
        if uri := ScalingConfig.parse(config.tts).judge:
            judge = await stack.enter_async_context(aclosing(make_policy(uri)))
        place = folder or default_folder(plan, RUNS)
        return await play_scaled(plan, policy, place, judge=judge, watch=watch)


async def play_scaled(
    plan: Plan,
    policy: Policy,
    folder: Path,
    *,
    judge: Policy | None = None,
    watch: Watch = watch_nothing,
) -> EvalResult:
    """Play what is missing of a plan with `tts`; judge: None lets the most frequent answer win."""
    scaling = ScalingConfig.parse(plan.config.tts)
    if bool(scaling.judge) != (judge is not None):
        raise UsageError(f"tts {plan.config.tts!r} and its judge do not fit: {judge!r}")
    details = policy.describe()
    if judge is not None:
        details = {**details, "judge": judge.describe()}
    attempts_plan = Plan(replace(plan.config, tts="", group_size=scaling.best_of), plan.envs)
    with open_run(folder, plan, details) as store:
        try:
            await play_run(attempts_plan, policy, folder / ATTEMPTS, watch=watch)
            by_task: dict[str, list[Rollout]] = {}
            for rollout in read_rollouts(folder / ATTEMPTS):
                key = rollout_key(rollout.env_id, rollout.task_id, 0)
                by_task.setdefault(key, []).append(rollout)
            with RolloutStore.open(folder / STEPS) as steps:
                chooser = _Chooser(scaling, store, steps, policy, judge or policy)
                await run_all(
                    chooser.settle(request, by_task[request.key])
                    for request in plan.requests()
                    if request.key not in store.done
                )
        finally:
            result = write_summary(store, folder)
        return result


class _Chooser:
    """What the choices of all tasks share: who plays and is asked, and where that is kept."""

    def __init__(
        self,
        scaling: ScalingConfig,
        store: PlanStore,
        steps: RolloutStore,
        policy: Policy,
        judge: Policy,
    ) -> None:
        config = store.plan.config
        self.scaling, self.steps = scaling, steps
        self.policy, self.judge = (
            RolloutEngine(
                each,
                limits=config.limits,
                sampling=config.sampling,
                config=EngineConfig(max_retries=config.max_retries),
            )
            for each in (policy, judge)
        )
        self.known = {
            (record.group_id, record.metadata["told_sha256"]): record.session_id
            for record in steps.sessions()
            if has_valid_reward(record)
        }
        self._store = store
        self._places = asyncio.Semaphore(config.max_concurrency)
        self._writing = asyncio.Lock()

    async def settle(self, request: RolloutRequest, attempts: Sequence[Rollout]) -> None:
        """Choose for one task, and write what was chosen."""
        group_id = self._store.group_ids[attempts[0].env_id, attempts[0].task_id]
        async with self._places:
            chosen = await _Choice(self, request, attempts, group_id).run()
        async with self._writing:
            await asyncio.to_thread(self._store.append, [chosen])


class _Choice:
    """One task's choice in the making."""

    def __init__(
        self, chooser: _Chooser, request: RolloutRequest, attempts: Sequence[Rollout], group_id: str
    ) -> None:
        self._chooser, self._request, self._group_id = chooser, request, group_id
        self._played = {rollout.attempt: rollout for rollout in attempts}
        self._asked: dict[str, Rollout] = {}
        self._problems: dict[str, str] = {}
        self._told: dict[str, Any] = {"attempt": min(self._played), "num_unread": 0}

    async def run(self) -> Rollout:
        """Return the chosen attempt, with how it was chosen and what all of it cost."""
        scaling = self._chooser.scaling
        for retry in range(scaling.reflect + 1):
            chosen = await self._choose()
            if chosen is None or retry == scaling.reflect:
                break
            prompt = critic_prompt(chosen)
            criticism = read_criticism(await self._ask(self._chooser.policy, prompt, "criticism"))
            if not criticism:
                break
            attempt = scaling.best_of + retry
            request = replace(self._request, attempt=attempt, note=note_of(criticism))
            self._played[attempt] = await self._step(
                self._chooser.policy, request, request.note, f"retry-{retry}"
            )
        rollout = self._played[self._told["attempt"]]
        paid = (*self._played.values(), *self._asked.values())
        told = {
            **self._told,
            "num_attempts": len(self._played),
            "num_questions": len(self._asked),
            "num_prompt_tokens": sum(each.num_prompt_tokens for each in paid),
            "num_completion_tokens": sum(each.num_completion_tokens for each in paid),
        }
        return replace(rollout, attempt=0, artifacts={**rollout.artifacts, SCALING: told})

    async def _choose(self) -> Candidate | None:
        """Choose among what was played, and note how; None where nothing can be chosen."""
        scaling = self._chooser.scaling
        found = [await self._candidate(each) for each in self._played.values() if _has_ended(each)]
        kept = filter_candidates(found) if scaling.filter else found
        ranked, votes = count_votes(kept, scaling.best_of), Counter(one.answer for one in kept)
        if not ranked:
            return None
        chosen, by = ranked[0], "vote"
        if scaling.judge and len(ranked) > 1:
            # In an order that says nothing of their votes.
            shown = sorted(ranked, key=lambda one: one.attempt)
            random.Random(derive_seed("order", self._request.seed)).shuffle(shown)
            prompt = judge_prompt(found[0].opening, shown, votes)  # a retry's has its note
            answer = await self._ask(self._chooser.judge, prompt, "judgement")
            place = read_judgement(answer, len(shown))
            self._told["num_unread"] += place is None
            if place is not None:
                chosen, by = shown[place], "judge"
        self._told |= {
            "attempt": chosen.attempt,
            "by": by,
            "votes": votes[chosen.answer],
            "num_left_out": len(self._played) - len(kept),
            "num_answers": len(ranked),
        }
        return chosen

    async def _candidate(self, rollout: Rollout) -> Candidate:
        """Read an attempt; the env looks once at equal answers."""
        env = self._request.env
        assert isinstance(env, Env)  # a plan's requests have their env here
        candidate = read_candidate(env, rollout)
        answer, is_looked_at = candidate.answer, self._chooser.scaling.filter
        if is_looked_at and answer and answer not in self._problems:
            self._problems[answer] = await find_problem(env, rollout)
        return replace(candidate, problem=self._problems.get(answer, ""))

    async def _ask(self, engine: RolloutEngine, prompt: str, step: str) -> str:
        """Return the answer to a question; `PolicyError` where there is none."""
        seed = derive_seed(step, self._request.seed, prompt)
        request = RolloutRequest(env=QuestionEnv(prompt, step), seed=seed)
        rollout = await self._step(engine, request, prompt, step)
        if not rollout.reward.is_valid:
            raise PolicyError(
                f"the {step} of task {self._request.task_id!r} failed: {rollout.reason}. What has"
                " ended is kept; mend it and run the same command again.",
                kind=str(rollout.failure_kind),
            )
        self._asked[rollout.episode_id] = rollout
        said = [m["content"] for m in rollout.messages if m["role"] == "assistant"]
        return said[-1] if said else ""

    async def _step(
        self, engine: RolloutEngine, request: RolloutRequest, told: str, step: str
    ) -> Rollout:
        """Play a step, or return it where an earlier run played it; told: what decides it."""
        steps, digest = self._chooser.steps, hashlib.sha256(told.encode()).hexdigest()
        group_id = f"{self._group_id}/{step}"
        if (known := self._chooser.known.get((group_id, digest))) is not None:
            return as_rollout(steps.stored(known))
        rollout = await engine.play(request)
        session = as_session(
            rollout,
            group_id=group_id,
            metadata={"step": step, "told_sha256": digest},
            ended_s=time.time(),
        )
        await asyncio.to_thread(steps.add_sessions, [session], is_durable=True)
        self._chooser.known[group_id, digest] = rollout.episode_id
        return rollout


def _has_ended(rollout: Rollout) -> bool:
    """Return whether a policy played to the end, whatever became of the grading."""
    is_ungraded = rollout.failure_kind in _OF_GRADING
    return bool(rollout.turns) and (rollout.status is not RolloutStatus.FAILED or is_ungraded)
