"""Envs served over MCP, played through the SDK's own client."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import katgym

pytest.importorskip("mcp", reason="needs mcp>=2.3")

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "katgym-plugin-mcp"
from mcp import Client, StdioServerParameters  # noqa: E402 - the SDK is there

from katgym_plugin_mcp.cli import serve_command  # noqa: E402 - the SDK is there
from katgym_plugin_mcp.served_env import ServedEnv  # noqa: E402 - the SDK is there

ENV_ID = "katgym/TreasureHunt-v1"


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content]


class Guess(katgym.Env):
    """Says more or less until the number is said; has a tool called `answer`."""

    default_max_turns = 3

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-guess", prompt="A number to 9?", answer="4")]

    @katgym.tool
    def answer(self, text: str) -> str:
        """Fail, or break the infrastructure."""
        if text == "break":
            raise katgym.InfrastructureError("the dice are gone")
        raise katgym.ToolError(f"no dice for {text}")

    def reply(self, message: Any) -> str | None:
        if message["content"] == self.task.answer:
            return None
        return "more" if message["content"] < self.task.answer else "less"

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == self.task.answer


async def play_both(seed: int, *, max_turns: int) -> tuple[float | None, float]:
    """Return the reward through the bridge, and that of the same turns played natively."""
    env = katgym.make(ENV_ID, max_turns=max_turns)
    twin = katgym.make(ENV_ID, max_turns=max_turns)
    opening, _ = await twin.areset(seed=seed)
    await env.areset(seed=seed)
    async with Client(ServedEnv(env, ENV_ID).server) as client:
        told = texts(await client.call_tool("begin", {}))
        assert told == [message["content"] for message in opening]
        while True:
            call = twin.oracle_action()["tool_calls"][0]["function"]
            arguments = json.loads(call["arguments"])
            result = await client.call_tool(call["name"], arguments)
            action = katgym.assistant("", [(call["name"], arguments)])
            observation, reward, terminated, truncated, _ = await twin.astep(action)
            expected = [message["content"] for message in observation]
            assert texts(result)[: len(expected)] == expected
            if terminated or truncated:
                note = texts(result)[-1].removeprefix("episode ended: ")
                assert json.loads(note) == {"reward": reward, "end_reason": env.end_reason}
                return env.last_reward.value, reward  # type: ignore[union-attr]  # it has ended


def test_equal_seeds_give_equal_rewards_natively_and_over_mcp() -> None:
    for max_turns, expected in ((2, {0.0, 1.0}), (40, {1.0})):
        rewards = [asyncio.run(play_both(seed, max_turns=max_turns)) for seed in range(4)]
        assert all(bridged == native for bridged, native in rewards)
        assert {native for _, native in rewards} == expected


def test_a_client_sees_the_envs_tools_beside_begin_and_answer() -> None:
    async def listed() -> list[Any]:
        env = Guess()
        await env.areset(seed=0)
        async with Client(ServedEnv(env, "my_env.py:Guess").server) as client:
            assert "one episode of my_env.py:Guess" in (client.instructions or "")
            assert "`answer_`" in (client.instructions or "")
            return (await client.list_tools()).tools

    tools = asyncio.run(listed())
    assert [tool.name for tool in tools] == ["begin", "answer_", "answer"]
    assert tools[2].input_schema["properties"] == {"text": {"type": "string"}}


async def say(*calls: tuple[str, dict[str, Any]]) -> tuple[ServedEnv, list[tuple[bool, list[str]]]]:
    env = Guess()
    await env.areset(seed=0)
    served = ServedEnv(env, "guess")
    async with Client(served.server) as client:
        results = [await client.call_tool(name, arguments) for name, arguments in calls]
    return served, [(result.is_error, texts(result)) for result in results]


def test_what_is_said_is_replied_to_until_the_episode_ends() -> None:
    served, results = asyncio.run(
        say(("answer_", {"message": "2"}), ("answer_", {"message": "4"}), ("answer_", {}),
            ("answer_", {"message": "4"}), ("begin", {}))
    )  # fmt: skip
    end = 'episode ended: {"reward": 1.0, "end_reason": "answered"}'
    assert results[:2] == [(False, ["more"]), (False, [end])]
    assert results[2] == (True, ["`answer_` takes a text, `message`"])
    assert results[3] == (True, [f"The episode has ended. {end}"])
    assert results[4] == (False, ["A number to 9?"])
    assert served.outcome()["reward"]["value"] == 1.0
    assert [message["role"] for message in served.outcome()["messages"]] == [
        "user", "assistant", "user", "assistant"
    ]  # fmt: skip


def test_errors_of_tools_are_error_results_and_use_up_turns() -> None:
    _, results = asyncio.run(
        say(("answer", {"text": "me"}), ("answer", {"txt": 1}), ("roll", {"sides": 6}))
    )
    assert all(is_error for is_error, _ in results)
    assert results[0][1] == ["no dice for me"]
    assert "'text' is a required property" in results[1][1][0]
    assert results[2][1][0].startswith("unknown tool 'roll'")
    assert json.loads(results[2][1][1].removeprefix("episode ended: "))["reward"] == 0.0


def test_broken_infrastructure_leaves_no_reward() -> None:
    served, results = asyncio.run(say(("answer", {"text": "break"}), ("answer", {"text": "me"})))
    assert [is_error for is_error, _ in results] == [True, True]
    assert '"reward": null' in results[0][1][0] and "the dice are gone" in results[0][1][0]
    assert served.outcome()["reward"] is None
    assert served.outcome()["failure"] == "the dice are gone"


def test_calls_at_the_same_time_are_turns_one_after_the_other() -> None:
    async def play() -> list[list[str]]:
        env = Guess()
        await env.areset(seed=0)
        async with Client(ServedEnv(env, "guess").server) as client:
            numbers = ("1", "9", "4")
            calls = (client.call_tool("answer_", {"message": number}) for number in numbers)
            return [texts(result) for result in await asyncio.gather(*calls)]

    more, less, end = asyncio.run(play())
    assert (more, less) == (["more"], ["less"]) and '"reward": 1.0' in end[0]


def test_an_env_with_several_seats_is_wrong_usage() -> None:
    parser = argparse.ArgumentParser()
    serve_command.add_arguments(parser)
    with pytest.raises(katgym.UsageError, match="has 2 seats; one can be served"):
        serve_command.run(parser.parse_args(["katgym/OpenSpiel-v0?game=tic_tac_toe&opponent=self"]))


@pytest.mark.slow
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_process_serves_one_episode_and_writes_what_came_of_it(
    tmp_path: Path, is_finished: bool
) -> None:
    out = tmp_path / "episode.json"
    script = (
        "import argparse; from katgym_plugin_mcp.cli import serve_command as command;"
        "parser = argparse.ArgumentParser(); command.add_arguments(parser);"
        "raise SystemExit(command.run(parser.parse_args()))"
    )
    paths = os.pathsep.join([str(PLUGIN), *(path for path in sys.path if path)])
    server = StdioServerParameters(
        command=sys.executable,
        args=["-c", script, ENV_ID, "--seed", "3", "--split", "test", "--out", str(out)],
        env={"PYTHONPATH": paths},
    )
    env = katgym.make(ENV_ID)
    env.reset(seed=3, options={"split": "test"})

    async def play() -> None:
        async with Client(server) as client:
            chest = env.task.answer if is_finished else None
            if chest is not None:
                await client.call_tool("open_chest", {"number": int(chest)})

    asyncio.run(play())
    outcome = json.loads(out.read_text())
    assert outcome["task_id"] == env.task.task_id
    assert outcome["task_sha256"] == env.task.sha256
    assert (outcome["reward"] or {}).get("value") == (1.0 if is_finished else None)
