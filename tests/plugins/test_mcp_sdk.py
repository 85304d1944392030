"""A server written with the SDK, over streams and HTTP: overlapping calls, errors, results."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_S

import katgym

pytest.importorskip("mcp", reason="needs mcp>=2.3")

from katgym_plugin_mcp.connection import McpServer
from katgym_plugin_mcp.env import McpEnv

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]

pytestmark = pytest.mark.slow


class Bench(McpEnv):
    """One task for the tools of the test's server."""

    server: Sequence[str] | str = SERVER
    parallel = ("together.count",)
    timeout_s = HANG_S
    splits = ("test",)

    @katgym.tool
    def note(self, text: str) -> str:
        """Note something."""
        return f"noted {text}"

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id="bench", prompt="Call what there is.")]

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == "done"


def play(env: katgym.Env, *turns: list[tuple[str, dict[str, Any]]]) -> list[katgym.ToolResult]:
    script = [katgym.assistant("", calls) for calls in turns]
    policy = katgym.testing.ScriptedPolicy([*script, katgym.assistant("done")])
    rollout = asyncio.run(katgym.run_rollout(env, policy, seed=0))
    assert rollout.reward.value == 1.0, rollout.reward.reason
    return [result for turn in rollout.turns for result in turn.tool_results]


@pytest.fixture
def remote() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    command = [*SERVER, "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())  # it is bound
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            process.terminate()


def test_calls_overlap_fail_and_are_recorded_under_names_that_policies_can_call() -> None:
    three = [("together_count", {"num": 3})] * 3
    others: list[tuple[str, dict[str, Any]]] = [
        ("note", {"text": "x"}), ("fail", {"text": "no such row"}), ("table", {"size": 3}),
        ("show", {}), ("wait", {"seconds": "x"}), ("wait", {"seconds": 0}),
    ]  # fmt: skip
    results = play(Bench(), three, others)
    assert [result.content for result in results[:3]] == ["3 at once"] * 3
    assert [result.stage for result in results] == [0, 0, 0, 0, 1, 2, 3, 4, 5]
    assert results[3].content == "noted x"
    assert results[4].error == katgym.ToolErrorKind.TOOL_ERROR
    assert "no such row" in results[4].content
    assert json.loads(results[5].content) == {"0": 0, "1": 1, "2": 4}
    assert results[6].content.splitlines() == [
        "a text",
        "[image/png of 3 bytes, not shown]",
        "[resource log: file:///log]",
        "[resource file:///notes]",
        "some notes",
        "[resource file:///raw: bytes of 3 bytes, not shown]",
    ]
    assert results[7].error == katgym.ToolErrorKind.BAD_ARGUMENTS
    assert results[8].content == "waited"


@pytest.mark.skipif(
    sys.executable.startswith("/tmp/"), reason="needs a venv outside of /tmp, which sandboxes own"
)
def test_calls_of_a_server_in_a_sandbox_overlap_and_fail() -> None:
    class Sandboxed(Bench):
        sandbox = "local"

    others: list[tuple[str, dict[str, Any]]] = [("fail", {"text": "no"}), ("table", {"size": 300})]
    results = play(Sandboxed(), [("together_count", {"num": 3})] * 3, others)
    assert [result.content for result in results[:3]] == ["3 at once"] * 3
    assert results[3].error == katgym.ToolErrorKind.TOOL_ERROR
    assert json.loads(results[4].content)["299"] == 299 * 299


def test_a_call_that_takes_too_long_is_cancelled_and_the_server_goes_on() -> None:
    class Short(Bench):
        async def setup(self) -> None:
            await super().setup()
            self.tools = {**self.tools, "wait": replace(self.tools["wait"], timeout_s=0.5)}

    results = play(Short(), [("wait", {"seconds": 3600})], [("table", {"size": 1})])
    assert [result.error for result in results] == [katgym.ToolErrorKind.TIMEOUT, None]


def test_a_server_is_reached_by_url_and_its_end_makes_the_reward_invalid(
    remote: tuple[str, subprocess.Popen[bytes]],
) -> None:
    class Remote(Bench):
        server = remote[0]

    results = play(Remote(), [("together_count", {"num": 2})] * 2, [("fail", {"text": "no"})])
    assert [result.content for result in results[:2]] == ["2 at once"] * 2
    assert results[2].error == katgym.ToolErrorKind.TOOL_ERROR
    env = Remote()
    env.reset(seed=0)
    assert env.connection is not None
    assert env.connection.instructions == "A bench of tools."
    remote[1].kill()
    remote[1].wait()
    with pytest.raises(katgym.InfrastructureError, match=f"'{remote[0]}' is gone"):
        env.step(katgym.assistant("", [("wait", {"seconds": 0})]))
    env.close()


def test_a_server_that_is_not_there_is_a_fault_of_the_infrastructure() -> None:
    async def connect() -> None:
        server = McpServer("http://127.0.0.1:9/mcp", start_timeout_s=HANG_S)
        try:
            await server.open()
        finally:
            await server.close()

    with pytest.raises(
        katgym.InfrastructureError, match=r"'http://127.0.0.1:9/mcp' cannot be used"
    ):
        asyncio.run(connect())
