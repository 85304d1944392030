"""Frauds of one field at a time: claims that agree with each other and that nobody asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from forgery import (
    Forgery,
    with_turn,
)
from frauds import FRAUDS, Edit, Fraud, Runs, lose
from verify_runs import HUNT

from katgym import Reward, RolloutStatus, Sampling
from katgym.environment.failure import FailureKind
from katgym.evaluation.verification.report import Verdict
from katgym.policies.version_span import VersionSpan

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
