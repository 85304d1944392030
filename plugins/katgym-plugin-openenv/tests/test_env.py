"""OpenEnv's servers as an env: its own example, its tool servers, and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_openenv.connection import ServerSession
from katgym_plugin_openenv.env import SPLIT_SIZE, OpenEnvServer
from katgym_plugin_openenv.server import application

TEXT_ACTION = {"properties": {"move": {"type": "string"}}, "required": ["move"]}


def connect(url: str, **options: Any) -> katgym.Env:
    return katgym.make("openenv/Server-v0", url=url, timeout_s=300.0, **options)


def test_openenvs_own_example_is_played_by_text_and_by_tool(echo_url: str) -> None:
    env = connect(echo_url, prompt="Say much.", max_turns=3)
    opening, _ = env.reset(seed=1)
    assert opening[0]["content"] == (
        "Say much.\n\nechoed_message: Echo environment ready!\nmessage_length: 0"
    )
    assert list(env.tools) == ["act"]
    observation, *_ = env.step("Hello")
    assert observation[0] == {"role": "user", "content": "echoed_message: Hello\nmessage_length: 5"}
    observation, *_ = env.step(katgym.assistant("", [("act", {"message": "You"})]))
    assert observation[0]["content"] == "echoed_message: You\nmessage_length: 3"
    observation, reward, _, truncated, _ = env.step("?")
    assert truncated and reward == pytest.approx(0.5 + 0.3 + 0.1)


def test_episodes_of_openenvs_example_run_side_by_side(echo_url: str) -> None:
    envs = [connect(echo_url) for _ in range(3)]

    async def play(env: katgym.Env, text: str) -> str:
        await env.areset(seed=1)
        observation, *_ = await env.astep(text)
        await env.aclose()
        return observation[0]["content"]

    async def play_all() -> list[str]:
        return await asyncio.gather(*(play(env, "x" * (i + 1)) for i, env in enumerate(envs)))

    lengths = [text.rpartition(" ")[2] for text in asyncio.run(play_all())]
    assert lengths == ["1", "2", "3"]


def test_an_action_that_the_schema_does_not_allow_is_the_calls_result(echo_url: str) -> None:
    env = connect(echo_url)
    env.reset(seed=1)
    observation, *_ = env.step(katgym.assistant("", [("act", {"mesage": "You"})]))
    assert "'message' is a required property" in observation[0]["content"]
    assert env.is_running
    env.close()


def test_the_env_holds_the_contract_on_a_server_of_katgyms(serve: Callable[[Any], str]) -> None:
    served = katgym.make("katgym/TreasureHunt-v1")
    env = connect(serve(application(served, "hunt")), max_turns=1, num_tasks=4)
    check_env(env, num_tasks=4, checks=CONTRACT).raise_for_failures()


def test_an_env_of_katgyms_earns_behind_a_server_what_it_earns(serve: Callable[[Any], str]) -> None:
    native = katgym.make("katgym/TreasureHunt-v1")
    env = connect(serve(application(native, "hunt")))
    rewards = []
    for is_right in (True, False):
        opening, _ = env.reset(seed=5)
        native.reset(seed=env.task.data["seed"])
        assert opening[0]["content"] == native.messages[0]["content"]
        answer = int(native.task.answer)
        chest = answer if is_right else answer % 2 + 1
        action = katgym.assistant("", [("open_chest", {"number": chest})])
        observation, reward, terminated, *_ = env.step(action)
        told, expected, *_ = native.step(action)
        assert terminated and observation == told and reward == expected
        rewards.append(reward)
    assert rewards == [1.0, 0.0]


def test_a_reward_that_is_none_behind_a_server_is_none_here(serve: Callable[[Any], str]) -> None:
    class Broken(katgym.Env):
        """Cannot grade."""

        def load_tasks(self, split: str) -> list[katgym.Task]:
            return [katgym.Task(task_id=f"{split}-0", prompt="Say it.")]

        @katgym.scorer()
        def correct(self) -> bool:
            raise katgym.InfrastructureError("the grader is gone")

    env = connect(serve(application(Broken(), "broken")))
    env.reset(seed=1)
    with pytest.raises(katgym.InfrastructureError, match=r"has no reward: .*the grader is gone"):
        env.step("it")


def test_the_tools_of_openenvs_tool_servers_are_the_envs(serve: Callable[[Any], str]) -> None:
    upstream = pytest.importorskip("openenv.core.env_server", reason="needs openenv")
    fastmcp = pytest.importorskip("fastmcp", reason="needs fastmcp")

    class Sums(upstream.MCPEnvironment):  # type: ignore[misc, name-defined]  # openenv is not in the checker's environment
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            tools = fastmcp.FastMCP("sums")

            @tools.tool
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            @tools.tool
            def fail(why: str) -> str:
                """Fail."""
                raise ValueError(why)

            super().__init__(tools)

        def reset(self, seed: int | None = None, **kwargs: Any) -> Any:
            return upstream.Observation(metadata={"seed": seed})

        def _step_impl(self, action: Any, **kwargs: Any) -> Any:
            return upstream.Observation(done=True, reward=1.0)

        @property
        def state(self) -> Any:
            return upstream.State()

    app = upstream.create_fastapi_app(Sums, upstream.CallToolAction, upstream.CallToolObservation)
    env = connect(serve(app), prompt="Add.")
    opening, _ = env.reset(seed=1)
    assert opening[0]["content"] == "Add."
    assert list(env.tools) == ["add", "fail"]
    assert env.tools["add"].description == "Add two numbers."
    calls = [("add", {"a": 2, "b": 3}), ("fail", {"why": "no luck"})]
    observation, *_ = env.step(katgym.assistant("", calls))
    assert observation[0]["content"] == "5"
    assert "no luck" in observation[1]["content"]
    _, _, terminated, _, _ = env.step("5")
    assert terminated


def fake(schema: Any, answers: list[Any]) -> Starlette:
    """Return a server that gives these answers, and ends the connection behind the last."""

    async def give_schema(request: Request) -> JSONResponse:
        return JSONResponse({"action": schema})

    async def play(socket: WebSocket) -> None:
        await socket.accept()
        for answer in answers:
            await socket.receive_text()
            await socket.send_text(answer if isinstance(answer, str) else json.dumps(answer))
        await socket.close()

    return Starlette(routes=[Route("/schema", give_schema), WebSocketRoute("/ws", play)])


def seen(observation: Any, reward: Any = None, done: bool = False) -> dict[str, Any]:
    data = {"observation": observation, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def refused(code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": "not so", "code": code}}


def test_rewards_add_up_until_the_server_says_done(serve: Callable[[Any], str]) -> None:
    answers = [seen({"board": [1, 2]}), seen({}, -0.25), refused("EXECUTION_ERROR"),
               seen({"board": "won"}, 1, done=True)]  # fmt: skip
    env = connect(serve(fake(TEXT_ACTION, answers)))
    opening, _ = env.reset(seed=1)
    assert opening[0]["content"] == "[1, 2]"
    assert env.step("left")[0][0]["content"] == ""
    assert env.step("up")[0][0]["content"] == "not so"
    observation, reward, terminated, *_ = env.step("right")
    assert (observation[0]["content"], reward, terminated) == ("won", 0.75, True)
    assert env.end_reason == "done"


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([refused("CAPACITY_REACHED")], "gives up: not so (CAPACITY_REACHED)"),
        ([refused("EXECUTION_ERROR")], r"refuses reset({'seed': 3}): not so"),
        ([seen({}), "{"], "is not OpenEnv's protocol"),
        ([seen({}), {"type": "observation", "data": []}], "is not OpenEnv's protocol"),
        ([seen({}), seen({}, "much")], "gives no number as a reward: 'much'"),
        ([seen({}), seen({}, float("nan"))], "gives no number as a reward: nan"),
        ([seen({})], "is gone"),
    ],
)
def test_a_server_that_misbehaves_breaks_the_episode_and_is_no_reward_of_0(
    serve: Callable[[Any], str], answers: list[Any], text: str
) -> None:
    env = connect(serve(fake(TEXT_ACTION, answers)), num_tasks=4)
    with pytest.raises(katgym.InfrastructureError) as caught:
        env.reset(options={"task_id": "train-000003"})
        env.step("left")
    assert text in str(caught.value)
    env.close()
    assert env.last_reward is None


def test_a_server_that_does_not_answer_in_time_is_infrastructure(
    serve: Callable[[Any], str],
) -> None:
    async def give_schema(request: Request) -> JSONResponse:
        return JSONResponse({"action": TEXT_ACTION})

    async def wait(socket: WebSocket) -> None:
        await socket.accept()
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass

    app = Starlette(routes=[Route("/schema", give_schema), WebSocketRoute("/ws", wait)])
    session = ServerSession(serve(app), timeout_s=300.0)
    session._timeout_s = 0.3  # of answers alone; there is time to connect
    with pytest.raises(katgym.InfrastructureError, match=r"does not answer within 0\.3 s"):
        session.reset(seed=1)
    session.close()


def test_a_server_that_is_not_there_is_infrastructure_and_a_wrong_url_is_usage() -> None:
    with pytest.raises(katgym.InfrastructureError, match="gives no schema"):
        connect("http://127.0.0.1:9").reset(seed=1)
    with pytest.raises(katgym.UsageError, match="http://HOST:PORT, got 'localhost:80'"):
        connect("localhost:80").reset(seed=1)
    with pytest.raises(katgym.UsageError, match="needs a server: url="):
        katgym.make("openenv/Server-v0").reset(seed=1)
    with pytest.raises(katgym.UsageError, match="num_tasks is 1 to"):
        OpenEnvServer(num_tasks=SPLIT_SIZE + 1)


def test_no_two_splits_share_a_seed() -> None:
    env = OpenEnvServer(num_tasks=3)
    seeds = [task.data["seed"] for split in env.splits for task in env.tasks(split)]
    assert len(set(seeds)) == len(seeds) == 9
