"""Envs behind OpenEnv's protocol, played by OpenEnv's own clients and by hand."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="needs the plugin's extra `test`")
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import katgym
from katgym_plugin_openenv import server as server_module
from katgym_plugin_openenv.cli import serve_command
from katgym_plugin_openenv.server import application

ENV_ID = "katgym/TreasureHunt-v1"


class Guess(katgym.Env):
    """Says more or less until the number is said."""

    default_max_turns = 3

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-guess", prompt="A number to 9?", answer="4")]

    @katgym.tool
    async def wait(self) -> str:
        """Take a while."""
        await asyncio.sleep(0.2)
        return "late"

    @katgym.tool
    def throw(self, sides: int) -> str:
        """Throw a die, or break the infrastructure."""
        if sides == 0:
            raise katgym.InfrastructureError("the dice are gone")
        return f"{sides}"

    def reply(self, message: Any) -> str | None:
        if message["content"] == "crash":
            raise RuntimeError("a fault of the env")
        if message["content"] == self.task.answer:
            return None
        return "more" if message["content"] < self.task.answer else "less"

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == self.task.answer


def guessing(**options: Any) -> TestClient:
    return TestClient(application(Guess(), "guess", **options))


def ask(socket: Any, kind: str, data: Any = None) -> Any:
    socket.send_json({"type": kind, **({} if data is None else {"data": data})})
    return socket.receive_json()


def served(serve: Callable[[Any], str]) -> str:
    return serve(application(katgym.make(ENV_ID), ENV_ID))


@pytest.mark.parametrize("max_turns", [1, 20])
def test_openenvs_own_client_earns_what_the_same_seed_and_actions_earn_natively(
    serve: Callable[[Any], str], max_turns: int
) -> None:
    generic = pytest.importorskip("openenv.core.generic_client", reason="needs openenv")
    rewards = []
    with generic.GenericEnvClient(base_url=served(serve)).sync() as client:
        for seed in range(4):
            env = katgym.make(ENV_ID, max_turns=max_turns)
            opening, info = env.reset(seed=seed)
            result = client.reset(seed=seed, max_turns=max_turns)
            assert result.observation["messages"] == opening
            assert result.metadata["task_id"] == info["task_id"]
            assert result.metadata["tools"] == [tool.to_openai() for tool in env.tools.values()]
            while not result.done:
                assert result.reward is None
                action = env.oracle_action()
                observation, reward, *_ = env.step(action)
                result = client.step(action)
                assert result.observation["messages"] == observation
            assert not env.is_running and result.reward == reward
            assert client.state()["step_count"] == env.num_turns
            rewards.append(result.reward)
    assert set(rewards) == {1.0 if max_turns == 20 else 0.0}


def test_openenvs_client_of_tools_lists_and_calls_those_of_the_episode(
    serve: Callable[[Any], str],
) -> None:
    client_module = pytest.importorskip("openenv.core.mcp_client", reason="needs openenv")
    env = katgym.make(ENV_ID)
    env.reset(seed=3)
    chest = int(env.task.answer)

    async def play() -> tuple[list[str], str, dict[str, Any]]:
        async with client_module.MCPToolClient(base_url=served(serve)) as client:
            await client.reset(seed=3)
            names = [tool.name for tool in await client.list_tools()]
            said = await client.call_tool("open_chest", number=chest)
            return names, said, (await client.state()).model_dump()

    names, said, state = asyncio.run(play())
    assert names == ["inspect", "open_chest"]
    assert said == "The treasure is here!"
    assert state["step_count"] == 1


def test_openenvs_own_validation_finds_nothing_wrong(serve: Callable[[Any], str]) -> None:
    validation = pytest.importorskip("openenv.cli._validation", reason="needs openenv")
    report = validation.validate_running_environment(served(serve))
    assert report["passed"], report
    assert report["mode"] == "simulation" and report["summary"]["passed_count"] == 6


def test_sessions_play_side_by_side_and_those_too_many_are_refused() -> None:
    with guessing(max_sessions=2) as client:
        with client.websocket_connect("/ws") as one, client.websocket_connect("/ws") as other:
            for socket in (one, other):
                assert ask(socket, "reset", {"seed": 1})["type"] == "observation"
            assert ask(one, "step", {"content": "4"})["data"]["reward"] == 1.0
            told = ask(other, "step", {"content": "9"})["data"]
            assert told["observation"]["messages"][0]["content"] == "less"
            assert (told["reward"], told["done"]) == (None, False)
            with client.websocket_connect("/ws") as third:
                refusal = third.receive_json()["data"]
            assert refusal["code"] == "CAPACITY_REACHED"
        with client.websocket_connect("/ws") as later:
            assert ask(later, "reset")["type"] == "observation"


@pytest.mark.parametrize(
    ("kind", "data", "code", "text"),
    [
        ("reset", {"sed": 1}, "VALIDATION_ERROR", "Did you mean 'seed'?"),
        ("reset", {"seed": -1}, "VALIDATION_ERROR", "seed is an int >= 0"),
        ("reset", {"task_id": "none"}, "VALIDATION_ERROR", "unknown task id 'none'"),
        ("step", {"conten": "4"}, "VALIDATION_ERROR", "Did you mean 'content'?"),
        ("step", {"content": 4}, "VALIDATION_ERROR", "content is a str"),
        ("step", {"content": "crash"}, "EXECUTION_ERROR", "RuntimeError: a fault of the env"),
        ("step", ["4"], "VALIDATION_ERROR", "data is a JSON object, got list"),
        ("stop", {}, "UNKNOWN_TYPE", "'stop'"),
    ],
)
def test_what_cannot_be_played_is_an_error_and_the_session_goes_on(
    kind: str, data: Any, code: str, text: str
) -> None:
    with guessing() as client, client.websocket_connect("/ws") as socket:
        ask(socket, "reset", {"seed": 1})
        error = ask(socket, kind, data)
        assert error["type"] == "error" and error["data"]["code"] == code
        assert text in error["data"]["message"]
        assert ask(socket, "reset", {"seed": 1})["type"] == "observation"
        assert ask(socket, "step", {"content": "4"})["data"]["done"]


def test_what_is_no_json_and_a_step_before_reset_are_errors() -> None:
    with guessing() as client, client.websocket_connect("/ws") as socket:
        socket.send_text("{")
        assert socket.receive_json()["data"]["code"] == "INVALID_JSON"
        socket.send_bytes(b"\x00")
        assert socket.receive_json()["data"]["code"] == "INVALID_JSON"
        error = ask(socket, "step", {"content": "4"})["data"]
        assert error["code"] == "EXECUTION_ERROR" and "call reset() first" in error["message"]
        assert ask(socket, "state")["data"]["is_running"] is False


def test_broken_infrastructure_is_an_error_and_never_a_reward() -> None:
    with guessing() as client, client.websocket_connect("/ws") as socket:
        ask(socket, "reset", {"seed": 1})
        call = {"type": "call_tool", "tool_name": "throw", "arguments": {"sides": 0}}
        error = ask(socket, "step", call)
        assert error["type"] == "error" and "the dice are gone" in error["data"]["message"]
        assert ask(socket, "state")["data"]["is_running"] is False


def test_a_client_that_leaves_while_its_action_is_played_leaves_no_session(
    serve: Callable[[Any], str],
) -> None:
    url = serve(application(Guess(), "guess", max_sessions=1)).replace("http", "ws")
    for _ in range(3):
        deadline = time.monotonic() + 300
        while True:
            with connect(f"{url}/ws", proxy=None) as socket:
                with contextlib.suppress(ConnectionClosed):  # it is refused; the answer says so
                    socket.send('{"type": "reset"}')
                answer = json.loads(socket.recv())
                if answer["type"] == "observation":
                    socket.send(
                        '{"type": "step", "data": {"type": "call_tool", "tool_name": "wait"}}'
                    )
                    break
            assert answer["data"]["code"] == "CAPACITY_REACHED" and time.monotonic() < deadline
            time.sleep(0.05)


def test_over_http_an_episode_is_found_by_its_id_until_it_ends() -> None:
    with guessing() as client:
        first = client.post("/reset", json={"seed": 1, "episode_id": "one"}).json()
        second = client.post("/reset", json={"seed": 1}).json()
        assert first["metadata"]["episode_id"] == "one"
        other = second["metadata"]["episode_id"]
        body = {"episode_id": "one", "action": {"content": "1"}}
        assert client.post("/step", json=body).json()["done"] is False
        assert client.get("/state", params={"episode_id": "one"}).json()["step_count"] == 1
        assert client.get("/state", params={"episode_id": other}).json()["step_count"] == 0
        body = {"episode_id": other, "action": {"content": "4"}}
        assert client.post("/step", json=body).json()["reward"] == 1.0
        again = client.post("/step", json=body)
        assert again.status_code == 404 and "it may have ended" in again.json()["detail"]
        assert client.post("/step", json={"action": {}}).status_code == 404
        assert client.post("/reset", content="[").status_code == 422
        assert client.post("/reset", json={"episode_id": ["one"]}).status_code == 200
        assert client.get("/state").json()["episode_id"] is None


def test_idle_sessions_without_a_connection_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with guessing(max_sessions=1) as client:
        assert client.post("/reset", json={}).status_code == 200
        assert client.post("/reset", json={}).status_code == 503
        monkeypatch.setattr(server_module, "IDLE_S", -1.0)
        assert client.post("/reset", json={}).status_code == 200


def test_a_session_of_the_tool_route_ends_when_it_is_closed() -> None:
    def call(client: TestClient, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = client.post("/mcp", json=body).json()
        assert answer["id"] == 7
        return answer.get("result", answer.get("error"))

    with guessing(max_sessions=1) as client:
        key = call(client, "openenv/session/create")["session_id"]
        assert "all 1 sessions" in call(client, "openenv/session/create")["message"]
        listed = call(client, "tools/list", session_id=key)["tools"]
        assert [tool["name"] for tool in listed] == ["wait", "throw"]
        assert "unknown method" in call(client, "tools/describe", session_id=key)["message"]
        assert call(client, "openenv/session/close", session_id=key)["closed"]
        assert "unknown session" in call(client, "tools/list", session_id=key)["message"]


def test_pages_in_a_browser_are_refused() -> None:
    origin = {"origin": "http://elsewhere.example"}
    with guessing() as client:
        assert client.post("/reset", json={}, headers=origin).status_code == 403
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers=origin):
            raise AssertionError("it was let in")


@pytest.mark.parametrize("arguments", [["--max-sessions", "0"], ["--split", "train"]])
def test_wrong_arguments_are_wrong_usage(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    serve_command.add_arguments(parser)
    with pytest.raises((katgym.UsageError, SystemExit)):
        serve_command.run(parser.parse_args([ENV_ID, *arguments]))


def test_the_schema_says_what_an_action_is() -> None:
    with guessing() as client:
        schema = client.get("/schema").json()
        assert set(schema) == {"action", "observation", "state"}
        assert set(schema["action"]["properties"]) >= {"content", "tool_calls"}
        assert json.dumps(client.get("/metadata").json()["name"]) == '"guess"'
