"""Frauds on rewards, rollouts and attempts: edited, dropped, doubled, picked.

Not here: what a run says it played (`claim_frauds.py`).
"""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
from forgery import (
    Forgery,
    session_of,
    with_reward,
    with_turn,
)
from frauds import Runs, fraud, lose
from verify_runs import ARITHMETIC, HUNT

from katgym import Reward, Rollout, RolloutStatus
from katgym.environment.failure import FailureKind
from katgym.evaluation.chain import LINK
from katgym.evaluation.verification.report import Verdict

# ---- the chain is left as it was


@fraud("chain", is_patient=False)
def reward_edited(forged: Forgery, runs: Runs) -> None:
    forged.change(0, with_reward(forged.rollouts[0], 1.0))


@fraud("chain", is_patient=False)
def failure_deleted(forged: Forgery, runs: Runs) -> None:
    del forged.sessions[next(lose(forged))]


@fraud("chain", is_patient=False)
def answer_edited(forged: Forgery, runs: Runs) -> None:
    answer = {"role": "assistant", "content": "Answer: 1"}
    forged.change(0, with_turn(forged.rollouts[0], 0, answer=answer))


@fraud("chain", is_patient=False)
def tool_result_edited(forged: Forgery, runs: Runs) -> None:
    index = next(i for i, r in enumerate(forged.rollouts) if r.turns[0].tool_results)
    (result, *rest) = forged.rollouts[index].turns[0].tool_results
    results = [msgspec.structs.replace(result, content="42"), *rest]
    forged.change(index, with_turn(forged.rollouts[index], 0, tool_results=results))


@fraud("chain", is_patient=False, run="tiny")
def logprob_edited(forged: Forgery, runs: Runs) -> None:
    tokens = forged.rollouts[0].turns[0].tokens
    logprobs = [-0.5, *tokens.policy_logprobs[1:]]
    tokens = msgspec.structs.replace(tokens, policy_logprobs=logprobs)
    forged.change(0, with_turn(forged.rollouts[0], 0, tokens=tokens))


@fraud("chain", is_patient=False)
def two_rollouts_exchanged(forged: Forgery, runs: Runs) -> None:
    first, second = forged.sessions[:2]
    links = first.record.metadata, second.record.metadata
    forged.sessions[0] = replace(first, record=replace(first.record, metadata=links[1]))
    forged.sessions[1] = replace(second, record=replace(second.record, metadata=links[0]))


@fraud("chain", is_patient=False)
def policy_renamed_in_the_lock(forged: Forgery, runs: Runs) -> None:
    forged.lock["policy"] = "openai:http://127.0.0.1:1#example/model"


@fraud("chain", is_patient=False)
def sampling_renamed_in_the_lock(forged: Forgery, runs: Runs) -> None:
    forged.lock["sampling"]["temperature"] = 0.2


@fraud("summary", is_patient=False)
def end_cut_off(forged: Forgery, runs: Runs) -> None:
    forged.summary = json.loads((runs.folders["random"] / "summary.json").read_text())
    del forged.sessions[-2:]


@fraud("chain", is_patient=False)
def link_taken_out(forged: Forgery, runs: Runs) -> None:
    record = forged.sessions[3].record
    metadata = {name: value for name, value in record.metadata.items() if name != LINK}
    forged.sessions[3] = replace(forged.sessions[3], record=replace(record, metadata=metadata))


@fraud("summary")
def figures_edited(forged: Forgery, runs: Runs) -> None:
    summary = json.loads((runs.folders["random"] / "summary.json").read_text())
    summary["envs"][ARITHMETIC]["success_rate"] = 1.0
    forged.summary = summary


@fraud("summary")
def summary_of_another_run(forged: Forgery, runs: Runs) -> None:
    forged.summary = json.loads((runs.folders["oracle"] / "summary.json").read_text())


# ---- rewards and ends, by a patient forger


@fraud("episodes")
def rewards_raised(forged: Forgery, runs: Runs) -> None:
    forged.change_all(lambda rollout: with_reward(rollout, 1.0))


@fraud("episodes")
def one_reward_raised(forged: Forgery, runs: Runs) -> None:
    index = next(lose(forged))
    forged.change(index, with_reward(forged.rollouts[index], 1.0))


@fraud("episodes")
def metric_edited(forged: Forgery, runs: Runs) -> None:
    index, rollout = next((i, r) for i, r in enumerate(forged.rollouts) if r.env_id == HUNT)
    parts = dict(rollout.reward.components)
    parts["facts_read"] = replace(parts["facts_read"], score=0.37)
    reward = Reward(value=rollout.reward.value, components=parts)
    forged.change(index, replace(rollout, reward=reward))


@fraud("episodes")
def success_made_easier(forged: Forgery, runs: Runs) -> None:
    def tell(rollout: Rollout) -> Rollout:
        return replace(rollout, success=replace(rollout.success, threshold=0.0))

    forged.change_all(tell)


@fraud("episodes")
def ended_by_the_task_instead_of_a_limit(forged: Forgery, runs: Runs) -> None:
    index, rollout = next(
        (i, r) for i, r in enumerate(forged.rollouts) if r.status is RolloutStatus.TERMINATED
    )
    forged.change(index, replace(rollout, status=RolloutStatus.TRUNCATED))


@fraud("episodes")
def episode_cut_before_it_failed(forged: Forgery, runs: Runs) -> None:
    index, rollout = next((i, r) for i, r in enumerate(forged.rollouts) if r.num_turns > 1)
    forged.change(index, replace(rollout, turns=rollout.turns[:-1], final_messages=()))


@fraud("episodes")
def failure_told_as_a_dead_server(forged: Forgery, runs: Runs) -> None:
    _tell_as_invalid(forged, FailureKind.POLICY_UNAVAILABLE, "connection refused")


@fraud("episodes", verdict=Verdict.INCOMPLETE)
def failure_told_as_a_broken_scorer(forged: Forgery, runs: Runs) -> None:
    _tell_as_invalid(forged, FailureKind.SCORER_ERROR, "it broke")


def _tell_as_invalid(forged: Forgery, kind: FailureKind, reason: str) -> None:
    """Give a lost rollout a failure that leaves it out of the mean."""
    index, reward = next(lose(forged)), Reward.invalid(kind, reason)
    status = {"status": RolloutStatus.FAILED, "failure_kind": kind, "reason": reward.reason}
    forged.change(index, replace(forged.rollouts[index], reward=reward, **status))


@fraud("attempts")
def valid_reward_on_a_failed_rollout(forged: Forgery, runs: Runs) -> None:
    forged.change(0, replace(forged.rollouts[0], status=RolloutStatus.FAILED))


# ---- attempts dropped, doubled, chosen


@fraud("attempts", verdict=Verdict.INCOMPLETE)
def failures_dropped(forged: Forgery, runs: Runs) -> None:
    for index in reversed(list(lose(forged))):
        del forged.sessions[index]


@fraud("plan")
def hard_task_dropped(forged: Forgery, runs: Runs) -> None:
    env = forged.lock["envs"][0]
    task_id = sorted(env["tasks"])[0]
    del env["tasks"][task_id]
    env["num_tasks"] -= 1
    forged.sessions = [s for s, r in zip(forged.sessions, forged.rollouts, strict=True)
                       if r.task_id != task_id]  # fmt: skip
    forged.regroup()


@fraud("policy")
def best_attempt_of_each_task_told_as_the_only_one(forged: Forgery, runs: Runs) -> None:
    best: dict[tuple[str, str], int] = {}
    for index, rollout in enumerate(forged.rollouts):
        key = rollout.env_id, rollout.task_id
        old = forged.rollouts[best[key]] if key in best else None
        if old is None or rollout.attempt > old.attempt:
            best[key] = index
    seeds = {(r.env_id, r.task_id): r.sampling_seed for r in forged.rollouts if r.attempt == 0}
    forged.lock["group_size"] = 1
    for index in best.values():
        rollout = forged.rollouts[index]
        seed = seeds[rollout.env_id, rollout.task_id]
        forged.change(index, replace(rollout, attempt=0, sampling_seed=seed))
    forged.sessions = [forged.sessions[index] for index in sorted(best.values())]
    forged.regroup()


@fraud("attempts")
def best_attempt_with_its_own_seed(forged: Forgery, runs: Runs) -> None:
    keep = [i for i, rollout in enumerate(forged.rollouts) if rollout.attempt == 1]
    forged.lock["group_size"] = 1
    for index in keep:
        forged.change(index, replace(forged.rollouts[index], attempt=0))
    forged.sessions = [forged.sessions[index] for index in keep]
    forged.regroup()


@fraud("attempts")
def one_rollout_told_twice(forged: Forgery, runs: Runs) -> None:
    copy = replace(forged.rollouts[0], episode_id="0" * 32)
    forged.sessions.append(session_of(forged.sessions[0], copy))


@fraud("attempts")
def one_rollout_told_as_two_attempts(forged: Forgery, runs: Runs) -> None:
    first = forged.rollouts[0]
    index = next(
        i for i, r in enumerate(forged.rollouts)
        if (r.env_id, r.task_id) == (first.env_id, first.task_id) and r.attempt != first.attempt
    )  # fmt: skip
    second = forged.rollouts[index]
    forged.change(index, replace(first, attempt=second.attempt, episode_id="1" * 32))


@fraud("attempts")
def more_attempts_than_planned(forged: Forgery, runs: Runs) -> None:
    extra = replace(forged.rollouts[0], attempt=7, episode_id="2" * 32)
    forged.sessions.append(session_of(forged.sessions[0], extra))


@fraud("attempts")
def played_again_until_it_won(forged: Forgery, runs: Runs) -> None:
    index = next(lose(forged))
    again = with_reward(replace(forged.rollouts[index], episode_id="3" * 32), 1.0)
    session = session_of(forged.sessions[index], again)
    metadata = {**session.record.metadata, LINK: {"number": 99, "segment": 2, "sha256": ""}}
    forged.sessions.append(replace(session, record=replace(session.record, metadata=metadata)))
