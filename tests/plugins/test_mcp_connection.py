"""MCP servers of one's own, on this machine and in a sandbox: isolation, faults, ends."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
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
from katgym.sandbox import Enforcement
from katgym.sandbox.venvs import ensure_venv

pytest.importorskip("mcp", reason="needs mcp>=2.3")

from katgym_plugin_mcp import server_sandbox
from katgym_plugin_mcp.connection import McpServer
from katgym_plugin_mcp.env import McpEnv
from katgym_plugin_mcp.questions import EXAMPLE, Questions
from katgym_plugin_mcp.server_home import parse_server

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "katgym-plugin-mcp"
PROGRAM = Path(__file__).with_name("odd_mcp_server.py")
EXAMPLE_SERVER = str(EXAMPLE / "server.py")
ODD = [sys.executable, str(PROGRAM), EXAMPLE_SERVER]
HOMES = ("", "local")
"""What `sandbox` is where a server runs on this machine, and in a sandbox."""


def odd(sandbox: str) -> list[str]:
    return [ensure_venv(()), *ODD[1:]] if sandbox else ODD


@asynccontextmanager
async def odd_server(
    files: Path | None = None, sandbox: str = "", **options: Any
) -> AsyncIterator[McpServer]:
    server = McpServer(odd(sandbox), sandbox=sandbox, **{"timeout_s": HANG_S, **options})
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


class SandboxedOdd(Odd):
    """The same in a sandbox."""

    sandbox = "local"

    async def setup(self) -> None:
        self.server = odd("local") if self.server is ODD else self.server
        await super().setup()


def play(env: Odd, *turns: list[tuple[str, dict[str, Any]]]) -> katgym.Rollout:
    script = [katgym.assistant("", calls) for calls in turns]
    policy = katgym.testing.ScriptedPolicy([*script, katgym.assistant("done")])
    return asyncio.run(katgym.run_rollout(env, policy, seed=0))


def results_of(rollout: katgym.Rollout) -> list[katgym.ToolResult]:
    return [result for turn in rollout.turns for result in turn.tool_results]


def assert_broken(rollout: katgym.Rollout, reason: str) -> None:
    """The reward is invalid, for a reason that the server's end tells."""
    assert rollout.status == katgym.RolloutStatus.FAILED
    assert not rollout.reward.is_valid and rollout.reward.value is None
    assert rollout.reward.failure_kind == katgym.FailureKind.INFRASTRUCTURE_ERROR
    assert reason in rollout.reward.reason


def test_the_examples_solutions_are_paid_with_the_server_in_a_sandbox() -> None:
    server = f"{ensure_venv(())} {EXAMPLE_SERVER}"
    env = Questions(
        server=server, questions=str(EXAMPLE / "questions.jsonl"), sandbox="local", parallel=True
    )
    rollout = asyncio.run(katgym.run_rollout(env, katgym.policy("oracle"), seed=3))
    assert rollout.reward.value == 1.0, rollout.reward.reason
    assert len(results_of(rollout)) > 1


async def look_twice(files: Path, sandbox: str) -> list[dict[str, Any]]:
    """Return what two servers see of their folders and variables; each leaves a file there."""
    found = []
    for _ in range(2):
        async with odd_server(files, sandbox, variables=["NAMED_TOKEN"]) as server:
            found.append(json.loads(await server.call("look", {})))
            await server.call("leave", {"text": "x"})
    return found


def test_a_server_has_a_folder_and_variables_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").write_text("read me")
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    monkeypatch.setenv("NAMED_TOKEN", "xyz")
    first, second = asyncio.run(look_twice(tmp_path, ""))
    assert first["files"] == second["files"] == {"notes": "read me"}
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()
    variables = first["variables"]
    assert variables["NAMED_TOKEN"] == "xyz" and "SECRET_TOKEN" not in variables
    assert variables["HOME"] == first["folder"]
    known = {"HOME", "TMPDIR", "PATH", "USER", "LOGNAME", "SHELL", "TERM", "NAMED_TOKEN"}
    assert set(variables) - {"LC_CTYPE"} <= known

    first, second = asyncio.run(look_twice(tmp_path, "local"))
    assert first["files"] == second["files"]
    assert set(first["files"]) == {"notes", "odd_mcp_server.py", "server.py"}
    assert first["files"]["notes"] == "read me" and first["folder"] == "/workspace"
    assert first["variables"]["NAMED_TOKEN"] == "xyz"
    assert "SECRET_TOKEN" not in first["variables"]
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


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
        found, hidden = (asyncio.run(search(port, sandbox)) for sandbox in HOMES)
    assert found == ["the user's", "connected"]
    assert hidden[0] == "no file: No such file or directory"
    assert hidden[1].startswith("no connection: ")


def test_calls_of_episodes_at_the_same_time_reach_their_own_servers() -> None:
    async def leave_and_look(text: str, sandbox: str) -> str:
        async with odd_server(sandbox=sandbox) as server:
            await server.call("leave", {"text": text})
            return str(json.loads(await server.call("look", {}))["files"]["left"])

    async def play_all() -> list[str]:
        small = [leave_and_look(str(i), "") for i in range(8)]
        large = [leave_and_look(str(i) * 200_000, "local") for i in range(3)]
        return await asyncio.gather(*small, *large)

    expected = [*(str(i) for i in range(8)), *(str(i) * 200_000 for i in range(3))]
    assert asyncio.run(play_all()) == expected


def test_what_is_no_message_is_told_once_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    for env in (Odd(), SandboxedOdd()):
        caplog.clear()
        rollout = play(env, [("rubbish", {})], [("rubbish", {})])
        assert [result.content for result in results_of(rollout)] == ["done", "done"]
        assert rollout.reward.value == 1.0
        told = [record.getMessage() for record in caplog.records if "no message" in record.message]
        assert len(told) == 1 and "Loading..." in told[0]


def test_a_server_that_dies_makes_the_reward_invalid_and_tells_what_it_logged() -> None:
    for env in (Odd(), SandboxedOdd()):
        rollout = play(env, [("die", {})])
        assert_broken(rollout, "is gone; it logged last: the database is gone")


def test_a_sandboxed_server_past_its_memory_makes_the_reward_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(server_sandbox.LIMITS, memory_bytes=100 << 20)
    monkeypatch.setattr(server_sandbox, "LIMITS", limits)
    assert_broken(play(SandboxedOdd(), [("eat", {})]), "it reached its limit memory_bytes")


def test_a_sandboxed_server_that_writes_a_line_without_an_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_sandbox, "MAX_LINE_BYTES", 1 << 20)
    rollout = play(SandboxedOdd(), [("flood", {"text": "x"})])
    assert_broken(rollout, "it wrote a line of more than 1048576 bytes")


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

    class Looking(SandboxedOdd):
        server = (ensure_venv(()), str(program), EXAMPLE_SERVER)
        timeout_s = 1.0

        async def after_tools(self, results: Any) -> list[Any]:
            seen.extend(processes_of(program.name))
            return []

    rollout = play(Looking(), [call])
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


def test_a_refused_call_is_an_error_of_the_tool() -> None:
    async def call(sandbox: str) -> None:
        async with odd_server(sandbox=sandbox) as server:
            await server.call("no_such_tool", {})

    for sandbox in HOMES:
        with pytest.raises(katgym.ToolError, match="unknown: 'no_such_tool'"):
            asyncio.run(call(sandbox))


def test_what_is_no_server_is_a_fault_of_the_infrastructure(subtests: pytest.Subtests) -> None:
    async def connect(command: list[str], sandbox: str) -> None:
        start_timeout_s = {"sleep": 0.5, "cat": 5}.get(command[0], HANG_S)
        server = McpServer(command, sandbox=sandbox, start_timeout_s=start_timeout_s)
        try:
            await server.open()
        finally:
            await server.close()

    for command, text in (
        (["sh", "-c", "echo no such module >&2; exit 1"], "cannot be used: .*no such module"),
        (["cat"], "cannot be used|is not ready"),
        (["sleep", "3600"], "is not ready after 0.5 s"),
    ):
        for sandbox in HOMES:
            with (
                subtests.test(command=command, sandbox=sandbox),
                pytest.raises(katgym.InfrastructureError, match=text),
            ):
                asyncio.run(connect(command, sandbox))


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


def test_servers_that_cannot_be_are_wrong_usage(tmp_path: Path, subtests: pytest.Subtests) -> None:
    nothing: list[tuple[str | list[str], str]] = [
        ("", "got nothing"),
        ([], "got nothing"),
        ("sh 'x", "is no command line"),
        ("no-such-program x", "there is no program 'no-such-program'"),
    ]
    for server, text in nothing:
        with subtests.test(server=server), pytest.raises(katgym.UsageError, match=text):
            parse_server(server)
    with pytest.raises(katgym.UsageError, match=r"variables \['NO_SUCH_ONE'\] are not set"):
        McpServer(ODD, variables=["NO_SUCH_ONE"])
    url = "http://host/mcp"
    with pytest.raises(katgym.UsageError, match="for a server that is started"):
        McpServer(url, variables=["PATH"])
    with pytest.raises(katgym.UsageError, match="files are for a server that is started"):
        asyncio.run(McpServer(url).open(tmp_path))
    with pytest.raises(katgym.UsageError, match="sandbox is for a server that is started"):
        McpServer(url, sandbox="local")
    with pytest.raises(katgym.UnknownNameError, match=r"'lokal'.*Did you mean 'local'"):
        asyncio.run(McpServer(["cat"], sandbox="lokal").open())
    (tmp_path / "server.py").write_text("")
    twice = ["sh", EXAMPLE_SERVER, str(tmp_path / "server.py")]
    with pytest.raises(katgym.UsageError, match=r"names two files 'server.py'$"):
        asyncio.run(McpServer(twice, sandbox="local").open())


def test_a_backend_without_this_machines_programs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Bare:
        async def enforcement(self) -> Enforcement:
            return Enforcement(backend="bare", level="container", is_safe=True)

    monkeypatch.setattr(server_sandbox, "shared_backend", lambda name: Bare())
    with pytest.raises(katgym.UsageError, match="'bare' shows nothing of this machine's programs"):
        asyncio.run(McpServer(["cat"], sandbox="bare").open())


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
