"""Frauds on runs, each of which `katgym verify` catches; honest runs, which it does not refuse.

Most forgers are patient: they compute chain, root and summary of the forged run anew. Not here:
what no verification sees (docs/guides/verify.md).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from forgery import (
    Forgery,
    read_forgery,
    session_of,
    with_reward,
    with_turn,
    write_forgery,
)
from verify_runs import ARITHMETIC, HUNT, TokenOracle, play_again, play_run, tiny_model, verify

from katgym import Reward, Rollout, RolloutStatus, Sampling, user
from katgym.environment.failure import FailureKind
from katgym.evaluation.chain import LINK
from katgym.evaluation.verification.report import Verdict
from katgym.play.seeding import derive_seed
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy
from katgym.policies.version_span import VersionSpan

TINY = (ARITHMETIC, "katgym/OpenSpiel-v0?game=tic_tac_toe&max_turns=3")


@dataclass
class Runs:
    """Honest runs, by what played them; `tiny` is a model of random weights."""

    folders: dict[str, Path]
    tiny: HfPolicy
    other: HfPolicy
    """Other weights under the same name."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    model, other = tiny_model(root / "model"), tiny_model(root / "other", seed=1)
    uri = f"hf:{model}"
    folders = {
        "random": play_run(root / "random", "random"),
        "oracle": play_run(root / "oracle", "oracle"),
        "later": play_run(root / "later", "random", seed=5),
        "tiny": play_run(root / "tiny", uri, TINY, num_tasks=2, sampling=Sampling(max_tokens=24)),
    }
    return Runs(
        folders,
        HfPolicy.load(str(model), name=uri, config=HfConfig(device="cpu")),
        HfPolicy.load(str(other), name=uri, config=HfConfig(device="cpu")),
    )


Edit = Callable[[Forgery, Runs], None]


@dataclass(frozen=True, kw_only=True)
class Fraud:
    """How a run is forged, and the check that has to catch it."""

    edit: Edit
    check: str
    run: str = "random"
    is_patient: bool = True
    verdict: Verdict = Verdict.REFUTED


FRAUDS: dict[str, Fraud] = {}


def fraud(check: str, **more: Any) -> Callable[[Edit], Edit]:
    def add(edit: Edit) -> Edit:
        FRAUDS[edit.__name__] = Fraud(edit=edit, check=check, **more)
        return edit

    return add


def lose(forged: Forgery) -> Iterator[int]:
    """Yield the places of rollouts that earned less than 1."""
    for index, rollout in enumerate(forged.rollouts):
        if rollout.reward.value is not None and rollout.reward.value < 1:
            yield index


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
    index = next(lose(forged))
    reward = Reward.invalid(FailureKind.POLICY_UNAVAILABLE, "connection refused")
    forged.change(
        index,
        replace(
            forged.rollouts[index],
            reward=reward,
            status=RolloutStatus.FAILED,
            failure_kind=reward.failure_kind,
            reason=reward.reason,
        ),
    )


@fraud("episodes", verdict=Verdict.INCOMPLETE)
def failure_told_as_a_broken_scorer(forged: Forgery, runs: Runs) -> None:
    index = next(lose(forged))
    reward = Reward.invalid(FailureKind.SCORER_ERROR, "it broke")
    forged.change(
        index,
        replace(
            forged.rollouts[index],
            reward=reward,
            status=RolloutStatus.FAILED,
            failure_kind=reward.failure_kind,
            reason=reward.reason,
        ),
    )


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


# ---- tasks, seeds, envs


@fraud("attempts")
def seeds_replaced(forged: Forgery, runs: Runs) -> None:
    forged.change_all(lambda rollout: replace(rollout, seed=(rollout.seed or 0) + 1))


@fraud("plan")
def seed_of_the_run_replaced(forged: Forgery, runs: Runs) -> None:
    forged.lock["seed"] = 99
    forged.regroup()


@fraud("plan")
def easier_tasks_in_place_of_the_drawn(forged: Forgery, runs: Runs) -> None:
    env = forged.lock["envs"][0]
    task_id = sorted(env["tasks"])[0]
    env["tasks"]["test-000001"] = env["tasks"].pop(task_id)
    forged.change_all(lambda r: replace(r, task_id="test-000001") if r.task_id == task_id else r)
    forged.regroup()


@fraud("plan")
def content_of_a_task_replaced(forged: Forgery, runs: Runs) -> None:
    env = forged.lock["envs"][0]
    task_id = sorted(env["tasks"])[0]
    env["tasks"][task_id] = "0" * 64
    forged.change_all(lambda r: replace(r, task_sha256="0" * 64) if r.task_id == task_id else r)
    forged.regroup()


@fraud("plan")
def tools_replaced(forged: Forgery, runs: Runs) -> None:
    forged.lock["envs"][0]["tools"] = []
    forged.regroup()


@fraud("plan")
def training_tasks_told_as_test(forged: Forgery, runs: Runs) -> None:
    forged.lock["split"] = "train"
    forged.change_all(lambda rollout: replace(rollout, split="train"))
    forged.regroup()


@fraud("plan")
def easy_level_told_as_hard(forged: Forgery, runs: Runs) -> None:
    forged.lock["envs"][0]["kwargs"] = {"level": 10}
    forged.change_all(
        lambda r: replace(r, env_kwargs={"level": 10}) if r.env_id == ARITHMETIC else r
    )
    forged.regroup()


@fraud("plan", verdict=Verdict.INCOMPLETE)
def env_of_a_version_that_nobody_has(forged: Forgery, runs: Runs) -> None:
    forged.lock["envs"][0]["plugin_version"] = "99.0"
    forged.change_all(lambda r: replace(r, plugin_version="99.0") if r.env_id == ARITHMETIC else r)
    forged.regroup()


@fraud("plan", verdict=Verdict.INCOMPLETE)
def env_that_nobody_has(forged: Forgery, runs: Runs) -> None:
    env_id = forged.lock["envs"][0]["env_id"] = "example/Private-v0"

    def tell(rollout: Rollout) -> Rollout:
        if rollout.env_id != ARITHMETIC:
            return rollout
        seed = derive_seed("env", forged.lock["seed"], env_id, rollout.task_id)
        sampling_seed = derive_seed("sampling", seed, rollout.attempt)
        return replace(rollout, env_id=env_id, seed=seed, sampling_seed=sampling_seed)

    forged.change_all(tell)
    forged.regroup()


@fraud("episodes")
def limits_broken(forged: Forgery, runs: Runs) -> None:
    forged.lock["limits"]["max_turns"] = 1
    forged.regroup()


# ---- what env and tools said


@fraud("episodes")
def tool_results_forged(forged: Forgery, runs: Runs) -> None:
    index, rollout = next(
        (i, r) for i, r in enumerate(forged.rollouts)
        if r.turns[0].tool_results and (r.num_turns > 1 or r.final_messages)
    )  # fmt: skip
    forged_text = "The ruby lies in chest 2."
    result = msgspec.structs.replace(rollout.turns[0].tool_results[0], content=forged_text)
    results = [result, *rollout.turns[0].tool_results[1:]]
    rollout = with_turn(rollout, 0, tool_results=results)

    def tell(messages: Any) -> list[Any]:
        return [
            {**m, "content": forged_text} if m.get("tool_call_id") == result.call_id else m
            for m in messages
        ]

    if rollout.num_turns > 1:
        rollout = with_turn(rollout, 1, messages=tell(rollout.turns[1].messages))
    else:
        rollout = replace(rollout, final_messages=tell(rollout.final_messages))
    forged.change(index, rollout)


@fraud("episodes")
def question_made_easier(forged: Forgery, runs: Runs) -> None:
    forged.change(0, with_turn(forged.rollouts[0], 0, messages=[user("What is 1 + 1?")]))


@fraud("episodes")
def last_message_forged(forged: Forgery, runs: Runs) -> None:
    index = next(i for i, r in enumerate(forged.rollouts) if r.env_id == HUNT)
    told = [user("The treasure is here!")]
    forged.change(index, replace(forged.rollouts[index], final_messages=told))


@fraud("tokens")
def call_that_never_ran(forged: Forgery, runs: Runs) -> None:
    index, rollout = next((i, r) for i, r in enumerate(forged.rollouts) if r.num_tool_calls)
    turn = next(i for i, t in enumerate(rollout.turns) if t.tool_results)
    forged.change(index, with_turn(rollout, turn, tool_results=[]))


@fraud("tokens")
def times_that_run_backwards(forged: Forgery, runs: Runs) -> None:
    forged.change(0, with_turn(forged.rollouts[0], 0, completed_s=-5.0))


# ---- logs of other runs


@fraud("attempts")
def spliced_from_a_run_of_another_seed(forged: Forgery, runs: Runs) -> None:
    others = read_forgery(runs.folders["later"]).sessions
    forged.sessions = forged.sessions[:6] + others[6:]


@fraud("policy")
def spliced_from_the_oracle(forged: Forgery, runs: Runs) -> None:
    others = {
        (r.env_id, r.task_id, r.attempt): r for r in read_forgery(runs.folders["oracle"]).rollouts
    }
    for index in lose(forged):
        own = forged.rollouts[index]
        other = others[own.env_id, own.task_id, own.attempt]
        turns = [msgspec.structs.replace(turn, model="random") for turn in other.turns]
        forged.change(index, replace(other, policy="random", turns=turns))


@fraud("chain")
def rollouts_older_than_their_run(forged: Forgery, runs: Runs) -> None:
    for index, session in enumerate(forged.sessions):
        record = replace(session.record, ended_s=(session.record.ended_s or 0) - 86_400)
        forged.sessions[index] = replace(session, record=record)


# ---- policies that are not what they are called


def rename(forged: Forgery, policy: str, details: dict[str, Any] | None = None) -> None:
    forged.lock["policy"] = policy
    forged.lock["policy_details"] = details or {"name": policy}

    def told(rollout: Any) -> Any:
        turns = [msgspec.structs.replace(turn, model=policy) for turn in rollout.turns]
        return replace(rollout, policy=policy, turns=turns)

    forged.change_all(told)
    forged.regroup()


@fraud("tokens", run="oracle")
def oracle_behind_a_models_name(forged: Forgery, runs: Runs) -> None:
    rename(forged, runs.tiny.name, runs.tiny.describe())


@fraud("tokens", run="oracle")
def oracle_behind_a_servers_name(forged: Forgery, runs: Runs) -> None:
    rename(forged, "vllm:http://127.0.0.1:1#example/model")


@fraud("policy", run="oracle")
def oracle_behind_the_random_policy(forged: Forgery, runs: Runs) -> None:
    rename(forged, "random")


@fraud("policy", run="random")
def player_told_as_one_that_does_nothing(forged: Forgery, runs: Runs) -> None:
    rename(forged, "noop")


@fraud("policy", run="tiny")
def oracle_in_the_tokens_of_a_model(forged: Forgery, runs: Runs) -> None:
    play_again(forged, TokenOracle(runs.tiny), runs.tiny)


@fraud("policy", run="tiny")
def oracle_answers_beside_the_tokens_of_a_model(forged: Forgery, runs: Runs) -> None:
    index, rollout = next((i, r) for i, r in enumerate(forged.rollouts) if r.env_id == ARITHMETIC)
    told = {"role": "assistant", "content": "Answer: 12"}
    forged.change(index, with_turn(rollout, len(rollout.turns) - 1, answer=told))


@fraud("policy", run="tiny")
def other_weights(forged: Forgery, runs: Runs) -> None:
    play_again(forged, runs.other, runs.tiny, should_rescore=False)


@fraud("policy", run="tiny")
def other_weights_with_the_log_probs_of_these(forged: Forgery, runs: Runs) -> None:
    play_again(forged, runs.other, runs.tiny)


@fraud("policy", run="tiny")
def another_temperature(forged: Forgery, runs: Runs) -> None:
    play_again(forged, runs.tiny, runs.tiny, sampling=Sampling(temperature=0.3, max_tokens=24))


@fraud("policy", run="tiny")
def best_of_many_draws_of_these_weights(forged: Forgery, runs: Runs) -> None:
    play_again(forged, runs.tiny, runs.tiny, seed_shift=10)


@fraud("policy", run="tiny")
def answer_whispered_in_the_prompt(forged: Forgery, runs: Runs) -> None:
    rollout = forged.rollouts[0]
    tokens = rollout.turns[0].tokens
    ids = [*runs.tiny.tokenizer.encode("It is 12. "), *tokens.prompt_ids]
    tokens = msgspec.structs.replace(tokens, prompt_ids=ids)
    forged.change(0, with_turn(rollout, 0, tokens=tokens, num_prompt_tokens=len(ids)))


@fraud("policy", run="tiny")
def full_context_that_had_room(forged: Forgery, runs: Runs) -> None:
    index, rollout = next((i, r) for i, r in enumerate(forged.rollouts) if r.num_turns > 1)
    kind = FailureKind.CONTEXT_LENGTH
    told = replace(
        rollout,
        turns=rollout.turns[:1],
        final_messages=rollout.turns[1].messages,
        status=RolloutStatus.TRUNCATED,
        failure_kind=kind,
        reward=replace(rollout.reward, failure_kind=kind),
    )
    forged.change(index, told)


@fraud("tokens", run="tiny")
def fewer_tokens_told_than_sampled(forged: Forgery, runs: Runs) -> None:
    forged.change(0, with_turn(forged.rollouts[0], 0, num_completion_tokens=3))


@fraud("tokens", run="tiny")
def more_tokens_than_allowed(forged: Forgery, runs: Runs) -> None:
    forged.lock["sampling"]["max_tokens"] = 8
    forged.change_all(lambda r: replace(r, sampling=Sampling(max_tokens=8)))
    forged.regroup()


@fraud("tokens", run="tiny")
def log_probs_left_out(forged: Forgery, runs: Runs) -> None:
    tokens = msgspec.structs.replace(forged.rollouts[0].turns[0].tokens, policy_logprobs=[])
    forged.change(0, with_turn(forged.rollouts[0], 0, tokens=tokens))


# ---- consistent claims that nobody asked for


def everywhere(**changes: Any) -> Edit:
    """Return an edit that changes fields of every rollout."""
    return lambda forged, runs: forged.change_all(lambda r: replace(r, **changes))


def in_every_turn(**changes: Any) -> Edit:
    """Return an edit that changes fields of every turn of every rollout."""

    def edit(forged: Forgery, runs: Runs) -> None:
        forged.change_all(
            lambda r: replace(r, turns=[msgspec.structs.replace(t, **changes) for t in r.turns])
        )

    return edit


def in_every_record(**changes: Any) -> Edit:
    """Return an edit that changes fields of every session's record."""

    def edit(forged: Forgery, runs: Runs) -> None:
        forged.sessions = [replace(s, record=replace(s.record, **changes)) for s in forged.sessions]

    return edit


def in_the_lock(*path: Any, value: Any) -> Edit:
    """Return an edit that changes a value of the lock, and the groups with it."""

    def edit(forged: Forgery, runs: Runs) -> None:
        place = forged.lock
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        forged.regroup()

    return edit


def in_the_summary(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Return an edit that changes the summary of one env."""

    def edit(forged: Forgery, runs: Runs) -> None:
        forged.summary = json.loads((runs.folders["random"] / "summary.json").read_text())
        change(forged.summary["envs"][HUNT])

    return edit


def faults(kind: FailureKind, num_cut: int) -> Edit:
    """Return an edit that tells failures as a fault, without their last turns."""

    def edit(forged: Forgery, runs: Runs) -> None:
        for index in lose(forged):
            rollout = forged.rollouts[index]
            told = replace(
                rollout,
                turns=rollout.turns[: len(rollout.turns) - num_cut],
                final_messages=[] if num_cut else rollout.final_messages,
                status=RolloutStatus.FAILED,
                failure_kind=kind,
                reason="no",
                reward=Reward.invalid(kind, "no"),
            )
            forged.change(index, told)

    return edit


def call_times(**changes: float) -> Edit:
    """Return an edit that changes times of the last call of a rollout."""

    def edit(forged: Forgery, runs: Runs) -> None:
        index = next(i for i, r in enumerate(forged.rollouts) if r.turns[0].tool_results)
        (*rest, last) = forged.rollouts[index].turns[0].tool_results
        results = [*rest, msgspec.structs.replace(last, **changes)]
        forged.change(index, with_turn(forged.rollouts[index], 0, tool_results=results))

    return edit


def turns_at_once(forged: Forgery, runs: Runs) -> None:
    index = next(i for i, r in enumerate(forged.rollouts) if len(r.turns) > 1)
    forged.change(index, with_turn(forged.rollouts[index], 1, started_s=0.0))


def newer_weights(forged: Forgery, runs: Runs) -> None:
    tokens = forged.rollouts[0].turns[0].tokens
    spans = [VersionSpan(version=7, start=0, end=len(tokens.completion_ids))]
    told = msgspec.structs.replace(tokens, version_spans=spans)
    forged.change(0, with_turn(forged.rollouts[0], 0, tokens=told))


def server_of_another_name(forged: Forgery, runs: Runs) -> None:
    """Rollouts of a model behind the name of another one, which a leaderboard would show."""
    forged.lock["policy"] = "openai:http://127.0.0.1:9/v1#large"
    small = forged.lock["policy"].replace("large", "small")
    forged.lock["policy_details"] = {"name": small, "model": "small"}
    turns = in_every_turn(model=small)
    everywhere(policy=small)(forged, runs)
    turns(forged, runs)
    forged.regroup()


def add_claims(figures: dict[str, Any]) -> None:
    figures["accuracy"] = 1.0


FRAUDS |= {
    name: Fraud(edit=edit, check=check, **more)
    for name, edit, check, more in [
        ("version_of_one_plugin", everywhere(plugin_version="9"), "attempts", {}),
        ("seat_renamed", everywhere(seat="opponent"), "attempts", {}),
        ("reason_rewritten", everywhere(reason="it was right"), "episodes", {}),
        ("artifacts_added", everywhere(artifacts={"model_patch": "+"}), "episodes", {}),
        ("kwargs_of_rollouts", everywhere(env_kwargs={"level": 9}), "episodes", {}),
        ("sampling_of_rollouts", everywhere(sampling=Sampling(temperature=0)), "attempts", {}),
        ("retries_below_0", everywhere(num_retries=-1), "tokens", {}),
        ("work_of_no_time", everywhere(wall_s=0.0), "tokens", {}),
        ("work_of_all_time", everywhere(wall_s=1e308), "chain", {}),
        ("route_of_a_gateway", in_every_turn(route="openai/chat"), "attempts", {}),
        ("upstream_of_a_gateway", in_every_turn(upstream="gpt"), "attempts", {}),
        ("turns_with_a_temperature", in_every_turn(sampling={"temperature": 0}), "attempts", {}),
        ("usage_of_a_player", in_every_turn(num_completion_tokens=9), "policy", {}),
        ("usage_below_0", in_every_turn(num_prompt_tokens=-9), "tokens", {}),
        ("answers_cut_by_a_limit", in_every_turn(finish_reason="length"), "policy", {}),
        ("tools_that_were_not_offered", in_every_turn(tools=[]), "episodes", {}),
        ("sessions_begun_earlier", in_every_record(created_s=1.0), "attempts", {}),
        ("sessions_with_a_budget", in_every_record(max_tokens=100), "attempts", {}),
        ("sessions_with_metadata", in_every_record(key_sha256="0" * 64), "attempts", {}),
        ("call_before_it_was_made", call_times(called_s=1e9), "tokens", {}),
        ("call_that_took_days", call_times(ended_s=1e9), "tokens", {}),
        ("turns_at_once", turns_at_once, "tokens", {}),
        ("claim_in_the_summary", in_the_summary(add_claims), "summary", {}),
        ("summary_without_figures", in_the_summary(dict.clear), "summary", {}),
        ("success_in_words", in_the_summary(lambda f: f["success"].clear()), "summary", {}),
        ("broken_env", faults(FailureKind.ENV_ERROR, 1), "episodes",
         {"verdict": Verdict.INCOMPLETE}),
        ("broken_sandbox", faults(FailureKind.SANDBOX_ERROR, 0), "episodes",
         {"verdict": Verdict.INCOMPLETE}),
        ("clock_that_nobody_set", faults(FailureKind.ENV_TIMEOUT, 1), "tokens", {}),
        ("dead_server_of_a_player", faults(FailureKind.POLICY_UNAVAILABLE, 1), "episodes",
         {"verdict": Verdict.INCOMPLETE}),
        ("dead_server_of_weights", faults(FailureKind.POLICY_UNAVAILABLE, 1), "episodes",
         {"run": "tiny", "verdict": Verdict.INCOMPLETE}),
        ("newer_weights", newer_weights, "tokens", {"run": "tiny"}),
        ("server_of_another_name", server_of_another_name, "attempts", {}),
        ("model_in_the_details", in_the_lock("policy_details", "model", value="large"), "policy",
         {"run": "tiny"}),
        ("id_in_the_details", in_the_lock("policy_details", "model_id", value="a/b"), "attempts",
         {"run": "tiny"}),
        ("katgym_of_another_day", in_the_lock("katgym_version", value="9.9"), "plan",
         {"verdict": Verdict.INCOMPLETE}),
        ("fewer_tasks_told", in_the_lock("envs", 0, "num_tasks", value=2), "plan", {}),
        ("more_turns_allowed", in_the_lock("envs", 0, "max_turns", value=99), "plan", {}),
        ("greedy_claim", in_the_lock("sampling", "temperature", value=0.0), "attempts",
         {"run": "tiny"}),
    ]
}  # fmt: skip


# ---- the tests


def test_there_are_a_hundred_frauds() -> None:
    assert len(FRAUDS) >= 100


@pytest.mark.parametrize("name", FRAUDS)
def test_a_fraud_is_caught(name: str, runs: Runs, tmp_path: Path) -> None:
    case = FRAUDS[name]
    forged = read_forgery(runs.folders[case.run])
    case.edit(forged, runs)
    report = verify(write_forgery(forged, tmp_path / "run", is_patient=case.is_patient))
    assert report.verdict is case.verdict, report.to_json()
    assert report.checks[case.check].verdict is case.verdict, report.to_json()


@pytest.mark.parametrize("run", ["random", "oracle", "tiny"])
def test_an_honest_run_is_verified_also_when_it_was_written_again(
    run: str, runs: Runs, tmp_path: Path
) -> None:
    report = verify(runs.folders[run])
    assert (report.verdict, report.grounds) == (Verdict.VERIFIED, "rewards; policy")
    again = verify(write_forgery(read_forgery(runs.folders[run]), tmp_path / "run"))
    assert asdict(again)["checks"].keys() == asdict(report)["checks"].keys()
    assert again.verdict is Verdict.VERIFIED


def test_another_root_than_the_one_told_refutes(runs: Runs) -> None:
    report = verify(runs.folders["random"], root="0" * 64)
    assert report.checks["chain"].refuted == [f"the root is {report.root}, expected was {'0' * 64}"]


def test_bytes_changed_in_the_database_refute(runs: Runs, tmp_path: Path) -> None:
    folder = write_forgery(read_forgery(runs.folders["random"]), tmp_path / "run")
    with sqlite3.connect(folder / "live.sqlite") as connection:
        connection.execute("UPDATE turns SET text = replace(text, 'Answer', 'Reward')")
    connection.close()
    report = verify(folder)
    assert report.verdict is Verdict.REFUTED
    assert "the bytes of turns" in report.checks["files"].refuted[0]


def test_a_context_that_was_full_is_known_to_the_policy_alone(runs: Runs, tmp_path: Path) -> None:
    uri = f"{runs.tiny.name}?max_context_tokens=80"
    folder = play_run(tmp_path / "run", uri, [ARITHMETIC], num_tasks=1)
    assert read_forgery(folder).rollouts[0].failure_kind is FailureKind.CONTEXT_LENGTH
    assert verify(folder).checks["episodes"].verdict is Verdict.VERIFIED
    alone = verify(folder, rescore_tokens=0)
    assert alone.checks["episodes"].verdict is Verdict.INCOMPLETE


def test_without_re_scoring_a_models_name_is_not_verified(runs: Runs) -> None:
    report = verify(runs.folders["tiny"], rescore_tokens=0)
    assert (report.verdict, report.grounds) == (Verdict.VERIFIED, "rewards; policy not")
