"""The recorder notes turns as they happen and makes the rollout of them.

Not here: how episodes are played (`test_agent_loop.py`).
"""

from __future__ import annotations

import pytest

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import assistant, user
from katgym.environment.reward import Reward
from katgym.environment.scheduler import ToolResult
from katgym.errors import ContextLengthError, InfrastructureError, PolicyError
from katgym.play.recorder import Recorder, classify
from katgym.policies.base import Completion, EpisodeContext, TokenRecord
from katgym.testing import EchoEnv, ScriptedPolicy


def recorder_after_reset() -> tuple[Recorder, EpisodeContext]:
    env = EchoEnv()
    observation, _ = env.reset(seed=0)
    recorder = Recorder(env=env, policy=ScriptedPolicy([], name="me"), seed=0, attempt=2)
    recorder.messages += observation
    return recorder, EpisodeContext(env=env, tools=env.tools, seed=5, seat="player")


def test_turns_messages_and_tokens_are_noted_in_order() -> None:
    recorder, context = recorder_after_reset()
    tokens = TokenRecord(prompt_ids=[1], completion_ids=[2, 3], policy_logprobs=[-1.0, -2.0])
    results = [ToolResult(call_id="call_0", name="echo", content="a")]
    recorder.begin_turn(context.tool_schemas)
    message = recorder.completed(
        Completion(
            message=assistant("", [("echo", {"text": "a"})]),
            finish_reason="tool_calls",
            tokens=tokens,
            num_prompt_tokens=1,
            num_completion_tokens=2,
        )
    )
    recorder.stepped([results[0].to_message(), user("go on")], results)
    recorder.begin_turn(context.tool_schemas)
    recorder.completed(
        Completion(message={"role": "assistant", "content": "done"}, num_completion_tokens=4)
    )
    recorder.stepped([], ())
    assert recorder.num_completion_tokens == 6
    rollout = recorder.rollout(context, status=RolloutStatus.TERMINATED, reward=Reward(value=1.0))
    assert [m["role"] for m in rollout.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert rollout.messages[1] == message
    assert [(t.num_shared_messages, len(t.messages)) for t in rollout.turns] == [(0, 1), (2, 2)]
    assert all(turn.answer and turn.answer["role"] == "assistant" for turn in rollout.turns)
    assert [t.finish_reason for t in rollout.turns] == ["tool_calls", "stop"]
    assert (rollout.turns[0].tokens, rollout.turns[1].tokens) == (tokens, None)
    assert list(rollout.turns[0].tool_results) == results
    assert (rollout.policy, rollout.seed, rollout.attempt, rollout.sampling_seed) == ("me", 0, 2, 5)
    assert (rollout.env_id, rollout.split, rollout.seat) == ("EchoEnv", "train", "player")
    assert rollout.task_sha256 == recorder.env.task.sha256
    assert [t["function"]["name"] for t in rollout.tools] == ["echo", "note"]


def test_a_turn_the_env_never_answered_is_kept() -> None:
    recorder, context = recorder_after_reset()
    recorder.begin_turn(context.tool_schemas)
    recorder.completed(Completion(message={"role": "assistant", "content": "x"}))
    rollout = recorder.failed(context, InfrastructureError("gone"), FailureKind.SANDBOX_ERROR)
    assert [len(t.messages) for t in rollout.turns] == [1]
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.FAILED,
        FailureKind.SANDBOX_ERROR,
    )
    assert rollout.reward == Reward.invalid(FailureKind.SANDBOX_ERROR, "gone")
    assert rollout.reason == "gone"


def test_classify() -> None:
    kinds: list[tuple[Exception, FailureKind]] = [
        (InfrastructureError("x"), FailureKind.INFRASTRUCTURE_ERROR),
        (InfrastructureError("x", kind="sandbox_error"), FailureKind.SANDBOX_ERROR),
        (InfrastructureError("x", kind="my_own"), FailureKind.INFRASTRUCTURE_ERROR),
        # A budget is the loop's to declare: claimed by an exception, it would count as a score.
        (InfrastructureError("x", kind="max_turns"), FailureKind.INFRASTRUCTURE_ERROR),
        (PolicyError("x"), FailureKind.POLICY_UNAVAILABLE),
        (PolicyError("x", kind="policy_rejected"), FailureKind.POLICY_REJECTED),
        (ValueError("x"), FailureKind.POLICY_BUG),
        (ContextLengthError("x"), FailureKind.POLICY_BUG),
    ]
    found = [(error, classify(error, default=FailureKind.POLICY_BUG)) for error, _ in kinds]
    assert found == kinds


def test_a_parent_that_is_no_earlier_turn_is_the_policys_fault() -> None:
    recorder, _ = recorder_after_reset()
    recorder.begin_turn()
    with pytest.raises(PolicyError, match="turn 0 name turn 0 as their parent") as caught:
        recorder.completed(Completion(message=assistant("x"), tokens=TokenRecord(parent=0)))
    assert caught.value.kind is FailureKind.POLICY_BUG
