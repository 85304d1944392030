"""Connections to MCP servers that start at once: isolation, faults, ends."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_S, wait_until

import katgym

pytest.importorskip("mcp", reason="needs mcp>=2.3")

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "katgym-plugin-mcp"
from katgym_plugin_mcp.connection import McpServer  # noqa: E402 - the SDK is there
from katgym_plugin_mcp.env import McpEnv  # noqa: E402 - the SDK is there
from katgym_plugin_mcp.questions import EXAMPLE  # noqa: E402 - the SDK is there
from katgym_plugin_mcp.server_home import parse_server  # noqa: E402 - the SDK is there

PROGRAM = Path(__file__).with_name("odd_mcp_server.py")
ODD = [sys.executable, str(PROGRAM), str(EXAMPLE / "server.py")]


@asynccontextmanager
async def odd_server(files: Path | None = None, **options: Any) -> AsyncIterator[McpServer]:
    server = McpServer(ODD, **{"timeout_s": HANG_S, **options})
    try:
        await server.open(files)
        yield server
    finally:
        await server.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(*pids: int) -> None:
    wait_until(lambda: not any(map(is_running, pids)), f"the end of {pids}")


class Odd(McpEnv):
    """An episode in which the server does what it is asked to."""

    server = ODD
    timeout_s = HANG_S
    splits = ("test",)

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id="odd", prompt="Call what there is.")]

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == "done"


def play(*turns: list[tuple[str, dict[str, Any]]]) -> katgym.Rollout:
    script = [katgym.assistant("", calls) for calls in turns]
    policy = katgym.testing.ScriptedPolicy([*script, katgym.assistant("done")])
    return asyncio.run(katgym.run_rollout(Odd(), policy, seed=0))


def test_a_server_has_a_folder_and_variables_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").write_text("read me")
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    monkeypatch.setenv("NAMED_TOKEN", "xyz")

    async def look() -> list[dict[str, Any]]:
        found = []
        for _ in range(2):
            async with odd_server(tmp_path, variables=["NAMED_TOKEN"]) as server:
                found.append(json.loads(await server.call("look", {})))
                await server.call("leave", {"text": "x"})
        return found

    first, second = asyncio.run(look())
    assert first["files"] == second["files"] == {"notes": "read me"}
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()
    variables = first["variables"]
    assert variables["NAMED_TOKEN"] == "xyz" and "SECRET_TOKEN" not in variables
    assert variables["HOME"] == first["folder"]
    known = {"HOME", "TMPDIR", "PATH", "USER", "LOGNAME", "SHELL", "TERM", "NAMED_TOKEN"}
    assert set(variables) - {"LC_CTYPE"} <= known
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes"]


def test_calls_of_episodes_at_the_same_time_reach_their_own_servers() -> None:
    async def leave_and_look(text: str) -> str:
        async with odd_server() as server:
            await server.call("leave", {"text": text})
            return str(json.loads(await server.call("look", {}))["files"]["left"])

    async def play_all() -> list[str]:
        return await asyncio.gather(*(leave_and_look(str(i)) for i in range(8)))

    assert asyncio.run(play_all()) == [str(i) for i in range(8)]


def test_what_is_no_message_is_told_once_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    rollout = play([("rubbish", {})], [("rubbish", {})])
    results = [message["content"] for message in rollout.messages if message["role"] == "tool"]
    assert results == ["done", "done"] and rollout.reward.value == 1.0
    told = [record.getMessage() for record in caplog.records if "no message" in record.message]
    assert len(told) == 1 and "Loading..." in told[0]


def test_a_server_that_dies_makes_the_reward_invalid_and_tells_what_it_logged() -> None:
    rollout = play([("die", {})])
    assert rollout.status == katgym.RolloutStatus.FAILED
    assert not rollout.reward.is_valid and rollout.reward.value is None
    assert rollout.reward.failure_kind == katgym.FailureKind.INFRASTRUCTURE_ERROR
    assert "is gone; it logged last: the database is gone" in rollout.reward.reason


@pytest.mark.slow
def test_a_call_that_hangs_is_an_error_result_and_the_server_ends_with_the_episode() -> None:
    pids: list[int] = []

    class Spawning(Odd):
        async def setup(self) -> None:
            await super().setup()
            self.tools = {**self.tools, "hang": replace(self.tools["hang"], timeout_s=0.5)}

        async def after_tools(self, results: Any) -> list[Any]:
            if results[0].name == "spawn":
                pids.extend(json.loads(results[0].content))
            return []

    script = [katgym.assistant("", [(name, {})]) for name in ("spawn", "hang")]
    policy = katgym.testing.ScriptedPolicy([*script, katgym.assistant("done")])
    rollout = asyncio.run(katgym.run_rollout(Spawning(), policy, seed=0))
    results = [result for turn in rollout.turns for result in turn.tool_results]
    assert [result.error for result in results] == [None, katgym.ToolErrorKind.TIMEOUT]
    assert rollout.reward.value == 1.0 and len(pids) == 2
    wait_for_end(*pids)


@pytest.mark.slow
def test_a_call_takes_no_longer_than_the_servers_timeout() -> None:
    async def hang() -> None:
        async with odd_server(timeout_s=0.1) as server:
            await server.call("hang", {})

    with pytest.raises(katgym.ToolError, match="timed out"):
        asyncio.run(hang())


def test_a_refused_call_is_an_error_of_the_tool() -> None:
    async def call() -> None:
        async with odd_server() as server:
            await server.call("no_such_tool", {})

    with pytest.raises(katgym.ToolError, match="unknown: 'no_such_tool'"):
        asyncio.run(call())


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["sh", "-c", "echo no such module >&2; exit 1"], "cannot be used: .*no such module"),
        (["cat"], "cannot be used|is not ready"),
        (["sleep", "3600"], "is not ready after 0.5 s"),
    ],
)
def test_what_is_no_server_is_a_fault_of_the_infrastructure(command: list[str], text: str) -> None:
    async def connect() -> None:
        start_timeout_s = {"sleep": 0.5, "cat": 5}.get(command[0], HANG_S)
        server = McpServer(command, start_timeout_s=start_timeout_s)
        try:
            await server.open()
        finally:
            await server.close()

    with pytest.raises(katgym.InfrastructureError, match=text):
        asyncio.run(connect())


def test_a_closed_connection_says_so_and_closes_twice() -> None:
    async def call() -> None:
        async with odd_server() as server:
            await server.close()
            await server.call("look", {})

    with pytest.raises(katgym.InfrastructureError, match="is gone"):
        asyncio.run(call())


def test_commands_are_made_absolute_where_they_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my server.py").write_text("")
    command = parse_server("sh 'my server.py' . --name x")
    assert isinstance(command, tuple) and Path(command[0]).is_absolute()
    assert command[1:] == (str(tmp_path / "my server.py"), ".", "--name", "x")
    assert parse_server("https://host/mcp") == "https://host/mcp"


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("", "got nothing"),
        ([], "got nothing"),
        ("sh 'x", "is no command line"),
        ("no-such-program x", "there is no program 'no-such-program'"),
    ],
)
def test_servers_that_cannot_be_are_wrong_usage(server: str | list[str], text: str) -> None:
    with pytest.raises(katgym.UsageError, match=text):
        parse_server(server)


def test_options_that_do_not_apply_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(katgym.UsageError, match=r"variables \['NO_SUCH_ONE'\] are not set"):
        McpServer(ODD, variables=["NO_SUCH_ONE"])
    with pytest.raises(katgym.UsageError, match="for a server that is started"):
        McpServer("http://host/mcp", variables=["PATH"])
    with pytest.raises(katgym.UsageError, match="files are for a server that is started"):
        asyncio.run(McpServer("http://host/mcp").open(tmp_path))


def test_only_tools_that_exist_may_overlap() -> None:
    async def tools() -> list[katgym.Tool]:
        async with odd_server() as server:
            assert not any(tool.parallel for tool in server.tools())
            assert all(tool.parallel for tool in server.tools(parallel=True))
            some = {tool.name for tool in server.tools(["look"]) if tool.parallel}
            assert some == {"look"}
            return server.tools(["lock"])

    with pytest.raises(katgym.UnknownNameError, match=r"'lock'\. Did you mean 'look'"):
        asyncio.run(tools())


@pytest.mark.slow
def test_a_server_and_what_it_started_end_when_the_owner_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio
from katgym_plugin_mcp.connection import McpServer
async def main():
    server = McpServer({shlex.join(ODD)!r})
    await server.open()
    print(await server.call("spawn", {{}}), flush=True)
    await server.call("hang", {{}})
asyncio.run(main())
"""
    paths = os.pathsep.join([str(PLUGIN), *(path for path in sys.path if path)])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        assert all(map(is_running, pids))
        owner.send_signal(signal.SIGKILL)
    wait_for_end(*pids)
