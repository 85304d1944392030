"""Frauds on what was played, and by whom: tasks, tools, splices, models, tokens.

Not here: rewards and attempts (`result_frauds.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from forgery import (
    Forgery,
    read_forgery,
    with_turn,
)
from frauds import Runs, fraud, lose
from verify_runs import ARITHMETIC, HUNT, TokenOracle, play_again

from katgym import Rollout, RolloutStatus, Sampling, user
from katgym.environment.failure import FailureKind
from katgym.evaluation.verification.report import Verdict
from katgym.play.seeding import derive_seed

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
