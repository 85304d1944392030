"""Agents of the Agent Client Protocol as policies: what they are told, call and say."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import katgym
from katgym.errors import UsageError
from katgym.play.rollout import Rollout
from katgym.testing import EchoEnv

AGENT = Path(__file__).parent / "acp_agent.py"


def play(env: katgym.Env | str, *script: dict[str, Any]) -> Rollout:
    command = shlex.join([sys.executable, str(AGENT), json.dumps(script)])
    return asyncio.run(katgym.run_rollout(env, f"acp:{command}", seed=0))


def test_a_plain_answer_is_the_policys() -> None:
    rollout = play(EchoEnv(max_turns=1), {"say": "So you ask: %"})
    assert rollout.turns[0].answer == katgym.assistant(
        f"So you ask: {rollout.messages[0]['content']}"
    )
    assert rollout.reward.is_valid


def test_calls_reach_the_env_and_results_the_agent() -> None:
    rollout = play(
        EchoEnv(max_turns=4),
        {"say": "let me see. ", "ends": False},
        {"call": [["echo", {"text": "one"}]]},
        {"call": [["echo", {"text": "two"}], ["echo", {"text": "three"}]]},
        {"say": "told %"},
    )
    calls = [[r.content for r in turn.tool_results] for turn in rollout.turns]
    assert calls[:2] == [["one"], ["two", "three"]]
    answers = [turn.answer["content"] for turn in rollout.turns if turn.answer]
    assert answers[0] == "let me see. "
    assert answers[2] == "told two / three"


def test_an_unknown_tool_is_told_to_the_agent() -> None:
    rollout = play(EchoEnv(max_turns=3), {"call": [["nothing", {}]]}, {"say": "%"})
    (result,) = rollout.turns[0].tool_results
    assert result.error == "unknown_tool"
    assert rollout.turns[1].answer is not None
    assert rollout.turns[1].answer["content"] == result.content


def test_an_agent_that_ends_is_a_failed_policy_and_no_reward() -> None:
    rollout = play(EchoEnv(max_turns=3), {"exit": 3})
    assert not rollout.reward.is_valid
    assert rollout.failure_kind == "policy_unavailable"
    assert "out of luck" in rollout.reason


def test_an_episode_that_ends_in_a_call_ends_the_agent() -> None:
    rollout = play(EchoEnv(max_turns=1), {"call": [["echo", {"text": "one"}]]}, {"say": "late"})
    assert rollout.num_turns == 1 and rollout.reward.is_valid


@pytest.mark.parametrize(
    ("title", "said"), [("echo (katgym)", "allow_once"), ("rm", "reject_once")]
)
def test_the_envs_tools_are_allowed_and_no_others(title: str, said: str) -> None:
    rollout = play(EchoEnv(max_turns=1), {"ask": title}, {"say": "%"})
    assert rollout.turns[0].answer == katgym.assistant(said)


@pytest.mark.parametrize(
    ("uri", "text"),
    [("acp:", "ends too early"), ("acp:no-such-agent", "there is no program"), ("acp:'a", "is no")],
)
def test_what_is_no_command_is_refused(uri: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        katgym.policy(uri)
