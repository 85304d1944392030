"""MCP servers in a sandbox: what they find there, and how they end."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_S, wait_until

import katgym
from katgym.sandbox import Enforcement
from katgym.sandbox.venvs import ensure_venv

pytest.importorskip("mcp", reason="needs mcp>=2.3")

from katgym_plugin_mcp import server_sandbox
from katgym_plugin_mcp.connection import McpServer
from katgym_plugin_mcp.env import McpEnv
from katgym_plugin_mcp.questions import EXAMPLE, Questions

PROGRAM = Path(__file__).with_name("odd_mcp_server.py")
EXAMPLE_SERVER = str(EXAMPLE / "server.py")


def odd() -> list[str]:
    return [ensure_venv(()), str(PROGRAM), EXAMPLE_SERVER]


@asynccontextmanager
async def odd_server(files: Path | None = None, **options: Any) -> AsyncIterator[McpServer]:
    server = McpServer(odd(), **{"sandbox": "local", "timeout_s": HANG_S, **options})
    try:
        await server.open(files)
        yield server
    finally:
        await server.close()


class Odd(McpEnv):
    """An episode in which the server does what it is asked to."""

    sandbox = "local"
    timeout_s = HANG_S
    splits = ("test",)

    async def setup(self) -> None:
        self.server = self.server or odd()
        await super().setup()

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id="odd", prompt="Call what there is.")]

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == "done"


def play(*turns: list[tuple[str, dict[str, Any]]], env: Odd | None = None) -> katgym.Rollout:
    script = [katgym.assistant("", calls) for calls in turns]
    policy = katgym.testing.ScriptedPolicy([*script, katgym.assistant("done")])
    return asyncio.run(katgym.run_rollout(env or Odd(), policy, seed=0))


def results_of(rollout: katgym.Rollout) -> list[katgym.ToolResult]:
    return [result for turn in rollout.turns for result in turn.tool_results]


def is_broken(rollout: katgym.Rollout, reason: str) -> bool:
    reward = rollout.reward
    kind = katgym.FailureKind.INFRASTRUCTURE_ERROR
    is_invalid = not reward.is_valid and reward.value is None and reward.failure_kind == kind
    return is_invalid and reason in reward.reason


def test_the_examples_solutions_are_paid_with_the_server_in_a_sandbox() -> None:
    server = f"{ensure_venv(())} {EXAMPLE_SERVER}"
    env = Questions(
        server=server, questions=str(EXAMPLE / "questions.jsonl"), sandbox="local", parallel=True
    )
    rollout = asyncio.run(katgym.run_rollout(env, katgym.policy("oracle"), seed=3))
    assert rollout.reward.value == 1.0, rollout.reward.reason
    assert len(results_of(rollout)) > 1


def test_a_server_has_a_workspace_and_named_variables_and_no_others(
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
    assert first["files"] == second["files"]
    assert set(first["files"]) == {"notes", "odd_mcp_server.py", "server.py"}
    assert first["files"]["notes"] == "read me" and first["folder"] == "/workspace"
    assert first["variables"]["NAMED_TOKEN"] == "xyz"
    assert "SECRET_TOKEN" not in first["variables"]
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_call_that_a_sandboxed_server_refuses_is_an_error_of_the_tool() -> None:
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
def test_what_is_no_server_in_a_sandbox_is_a_fault_of_the_infrastructure(
    command: list[str], text: str
) -> None:
    async def connect() -> None:
        start_timeout_s = {"sleep": 0.5, "cat": 5}.get(command[0], HANG_S)
        server = McpServer(command, sandbox="local", start_timeout_s=start_timeout_s)
        try:
            await server.open()
        finally:
            await server.close()

    with pytest.raises(katgym.InfrastructureError, match=text):
        asyncio.run(connect())


def test_a_backend_without_this_machines_programs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Bare:
        async def enforcement(self) -> Enforcement:
            return Enforcement(backend="bare", level="container", is_safe=True)

    monkeypatch.setattr(server_sandbox, "shared_backend", lambda name: Bare())
    with pytest.raises(katgym.UsageError, match="'bare' shows nothing of this machine's programs"):
        asyncio.run(McpServer(["cat"], sandbox="bare").open())


def test_commands_and_names_that_cannot_be_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("")
    twice = ["sh", EXAMPLE_SERVER, str(tmp_path / "server.py")]
    with pytest.raises(katgym.UsageError, match=r"names two files 'server.py'$"):
        asyncio.run(McpServer(twice, sandbox="local").open())
    with pytest.raises(katgym.UsageError, match="sandbox is for a server that is started"):
        McpServer("http://host/mcp", sandbox="local")
    with pytest.raises(katgym.UnknownNameError, match=r"'lokal'.*Did you mean 'local'"):
        asyncio.run(McpServer(["cat"], sandbox="lokal").open())


def test_a_server_in_a_sandbox_finds_neither_the_users_files_nor_the_network(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the user's")

    async def search(port: int, sandbox: str) -> list[str]:
        async with odd_server(sandbox=sandbox) as server:
            file = await server.call("read", {"path": str(secret)})
            return [file, await server.call("connect", {"port": port})]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found, hidden = (asyncio.run(search(port, sandbox)) for sandbox in ("", "local"))
    assert found == ["the user's", "connected"]
    assert hidden[0] == "no file: No such file or directory"
    assert hidden[1].startswith("no connection: ")


def test_calls_of_episodes_at_the_same_time_reach_their_own_sandboxes() -> None:
    async def leave_and_look(text: str) -> str:
        async with odd_server() as server:
            await server.call("leave", {"text": text})
            return str(json.loads(await server.call("look", {}))["files"]["left"])

    async def play_all() -> list[str]:
        return await asyncio.gather(*(leave_and_look(str(i) * 200_000) for i in range(3)))

    assert asyncio.run(play_all()) == [str(i) * 200_000 for i in range(3)]


def test_a_sandboxed_server_that_dies_makes_the_reward_invalid_and_tells_what_it_logged() -> None:
    assert is_broken(play([("die", {})]), "is gone; it logged last: the database is gone")


def test_a_sandboxed_server_past_its_memory_makes_the_reward_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(server_sandbox.LIMITS, memory_bytes=100 << 20)
    monkeypatch.setattr(server_sandbox, "LIMITS", limits)
    assert is_broken(play([("eat", {})]), "it reached its limit memory_bytes")


def test_a_sandboxed_server_that_writes_a_line_without_an_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_sandbox, "MAX_LINE_BYTES", 1 << 20)
    rollout = play([("flood", {"text": "x"})])
    assert is_broken(rollout, "it wrote a line of more than 1048576 bytes")


def test_lines_of_a_sandboxed_server_that_are_no_messages_are_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rollout = play([("rubbish", {})], [("rubbish", {})])
    assert [result.content for result in results_of(rollout)] == ["done", "done"]
    assert rollout.reward.value == 1.0
    told = [record.getMessage() for record in caplog.records if "no message" in record.message]
    assert len(told) == 1 and "Loading..." in told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", [("hang", {}), ("flood", {"text": "no message\n"})], ids=["hang", "flood"]
)
def test_a_sandboxed_server_that_does_not_answer_is_an_error_result_and_ends(
    tmp_path: Path, call: tuple[str, dict[str, Any]]
) -> None:
    program = tmp_path / f"odd_{tmp_path.parent.name}_{call[0]}.py"
    shutil.copy(PROGRAM, program)
    seen: list[str] = []

    class Looking(Odd):
        server = (ensure_venv(()), str(program), EXAMPLE_SERVER)
        timeout_s = 1.0

        async def after_tools(self, results: Any) -> list[Any]:
            seen.extend(processes_of(program.name))
            return []

    rollout = play([call], env=Looking())
    assert [result.error for result in results_of(rollout)] == [katgym.ToolErrorKind.TIMEOUT]
    assert rollout.reward.value == 1.0
    assert seen
    wait_until(lambda: not processes_of(program.name), "the end of the server")


def processes_of(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        found += [line] if name in line else []
    return found
