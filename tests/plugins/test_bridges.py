"""Envs through the bridges: what equal seeds and actions show and earn, natively and over each."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

import katgym
from katgym.environment.messages import Message, assistant, normalize_action
from katgym.evaluation.plan import parse_env

ENVS = [
    "katgym/Arithmetic-v1",
    "katgym/MathProblems-v1",
    "katgym/TreasureHunt-v1",
    "katgym/OpenSpiel-v0?game=tic_tac_toe",
]
SLOW_ENVS = ["katgym/Chess-v1", "katgym/MathCode-v1", "katgym/SWE-v0"]


@dataclass
class Played:
    """An episode from outside: its task, what was shown, what it earned, how it ended."""

    task_id: str
    shown: list[list[str]]
    reward: float | None
    end_reason: str


def make(env_id: str) -> katgym.Env:
    name, kwargs = parse_env(env_id)
    return katgym.make(name, **kwargs)


def texts(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["content"]]


def one_at_a_time(action: Any) -> Message:
    """Return an action's first call, or its text: what every bridge has a word for."""
    message = normalize_action(action)
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        return assistant("", [(call["function"]["name"], arguments)])
    return assistant(message["content"])


def play_natively(env_id: str, seed: int, player: str) -> tuple[Played, list[Message]]:
    env, rng, actions = make(env_id), random.Random(seed), []
    opening, info = env.reset(seed=seed)
    shown, is_done = [texts(opening)], False
    while not is_done:
        action = env.oracle_action() if player == "oracle" else env.random_action(rng)
        actions.append(one_at_a_time(action))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        is_done = terminated or truncated
        shown.append(texts(observation))
    return Played(info["task_id"], shown, reward, env.end_reason), actions


def play_over_openenv(env_id: str, seed: int, actions: list[Message]) -> Played:
    pytest.importorskip("katgym_plugin_openenv", reason="needs katgym-plugin-openenv")
    from starlette.testclient import TestClient

    from katgym_plugin_openenv.server import application

    client = TestClient(application(make(env_id), env_id))
    with client, client.websocket_connect("/ws") as socket:

        def ask(kind: str, data: Any) -> Any:
            socket.send_json({"type": kind, "data": data})
            answer = socket.receive_json()
            assert answer["type"] == "observation", answer
            return answer["data"]

        answers = [ask("reset", {"seed": seed})]
        answers += [ask("step", action) for action in actions]
    assert [answer["done"] for answer in answers] == [False] * len(actions) + [True]
    shown = [texts(answer["observation"]["messages"]) for answer in answers]
    last = answers[-1]
    return Played(
        answers[0]["metadata"]["task_id"], shown, last["reward"], last["metadata"]["end_reason"]
    )


def play_over_mcp(env_id: str, seed: int, actions: list[Message]) -> Played:
    pytest.importorskip("mcp", reason="needs mcp>=2.3")
    from mcp import Client

    from katgym_plugin_mcp.served_env import ServedEnv

    async def play() -> Played:
        env = make(env_id)
        await env.areset(seed=seed)
        async with Client(ServedEnv(env, env_id).server) as client:
            results = [await client.call_tool("begin", {})]
            for action in actions:
                name, arguments = "answer", {"message": action["content"]}
                for call in action.get("tool_calls", ()):
                    name = call["function"]["name"]
                    arguments = json.loads(call["function"]["arguments"])
                results.append(await client.call_tool(name, arguments))
        shown = [[block.text for block in result.content] for result in results]  # type: ignore[union-attr]  # all are texts
        end = json.loads(shown[-1].pop().removeprefix("episode ended: "))
        return Played(env.task.task_id, shown, end["reward"], end["end_reason"])

    return asyncio.run(play())


def play_everywhere(env_id: str) -> None:
    """The oracle is paid in full and random play is not, over each bridge as natively."""
    for player, seed in (("oracle", 3), ("random", 4)):
        native, actions = play_natively(env_id, seed, player)
        for play in (play_over_openenv, play_over_mcp):
            bridged = play(env_id, seed, actions)
            if not make(env_id).is_deterministic:
                native.shown, bridged.shown = native.shown[:1], bridged.shown[:1]
            assert bridged == native, play
        assert (native.reward == 1.0) == (player == "oracle")


@pytest.mark.parametrize("env_id", ENVS)
def test_equal_seeds_show_and_earn_the_same_natively_and_over_a_bridge(env_id: str) -> None:
    play_everywhere(env_id)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", SLOW_ENVS)
def test_slow_envs_show_and_earn_the_same(env_id: str) -> None:
    play_everywhere(env_id)
