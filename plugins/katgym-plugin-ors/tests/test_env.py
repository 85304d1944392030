"""Servers of the Open Reward Standard as an env: of its own kit, and servers that misbehave."""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn")
pydantic = pytest.importorskip("pydantic", reason="needs pydantic")
from starlette.applications import Starlette  # noqa: E402 - it is there with uvicorn
from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse, Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

import katgym  # noqa: E402
from katgym.certificate.certify import CONTRACT, check_env  # noqa: E402
from katgym.system.listening import listen, url_of  # noqa: E402


class Pair(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # pydantic is looked for
    a: int
    b: int


class Answer(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # as above
    text: str


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, loop="asyncio", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            yield url_of("127.0.0.1", sock)
        finally:
            server.should_exit = True
            thread.join(timeout=300)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    with contextlib.ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


@pytest.fixture(scope="module")
def sums_url() -> Iterator[str]:
    """Serve an environment that is written with the standard's own kit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        kit = pytest.importorskip("openreward.environments", reason="needs openreward")

    def output(text: str, reward: float | None = None, finished: bool = False) -> Any:
        blocks = [kit.TextBlock(text=text)]
        return kit.ToolOutput(blocks=blocks, reward=reward, finished=finished)

    class Sums(kit.Environment):  # type: ignore[misc, name-defined]  # the kit is not in the checker's environment
        @classmethod
        def list_splits(cls) -> list[Any]:
            return ["train", kit.Split(name="held-out", type="test")]

        @classmethod
        def list_tasks(cls, split: str) -> list[Any]:
            size = 3 if split == "train" else 2
            return [{"a": index, "b": len(split)} for index in range(size)]

        def get_prompt(self) -> list[Any]:
            return [kit.TextBlock(text=f"{self.task_spec['a']} + {self.task_spec['b']}?")]

        @kit.tool
        async def add(self, pair: Pair) -> Any:
            """Add two numbers."""
            return output(f"{pair.a + pair.b}\u2028{'.' * 5000}", 0.25)

        @kit.tool
        @kit.terminal
        async def answer(self, answer: Answer) -> Any:
            """Answer."""
            is_right = answer.text == str(self.task_spec["a"] + self.task_spec["b"])
            return output("Right." if is_right else "Wrong.", 0.75 * is_right, True)

    for tool in (Sums.add, Sums.answer):
        tool.__annotations__["return"] = kit.ToolOutput  # the kit reads it
    with serving(kit.Server([Sums]).app) as url:
        yield url


def connect(url: str, **options: Any) -> katgym.Env:
    return katgym.make("ors/Server-v0", url=url, timeout_s=300.0, **options)


def test_the_standards_own_server_gives_tasks_prompt_tools_and_rewards(sums_url: str) -> None:
    env = connect(sums_url)
    assert [task.task_id for task in env.tasks("train")] == [
        "train-000000", "train-000001", "train-000002"
    ]  # fmt: skip
    opening, _ = env.reset(options={"task_id": "train-000002"})
    assert opening == [{"role": "user", "content": "2 + 5?"}]
    assert list(env.tools) == ["add"]
    observation, *_ = env.step(katgym.assistant("", [("add", {"a": 2, "b": 5})]))
    assert observation[0]["content"] == f"7\u2028{'.' * 5000}"
    _, reward, terminated, *_ = env.step("7")
    assert (reward, terminated, env.end_reason) == (1.0, True, "finished")


def test_a_wrong_answer_and_a_call_that_is_refused_earn_nothing(sums_url: str) -> None:
    env = connect(sums_url)
    env.reset(options={"task_id": "test-000001", "split": "test"})
    assert env.task.data == {"env": "sums", "split": "held-out", "index": 1}
    observation, *_ = env.step(katgym.assistant("", [("add", {"a": "two", "b": 5})]))
    assert "is not of type 'integer'" in observation[0]["content"]
    assert env.step("no number")[1] == 0.0
    with pytest.raises(katgym.UsageError, match=r"has no split 'validation'"):
        env.tasks("validation")


def test_the_env_holds_the_contract(sums_url: str) -> None:
    class Known(type(connect(sums_url))):  # type: ignore[misc]  # the class behind the id
        splits = ("train", "test")

    env = Known(url=sums_url, max_turns=2)
    checks = tuple(name for name in CONTRACT if name != "floor")  # a call of `add` is paid
    check_env(env, num_tasks=4, checks=checks).raise_for_failures()


def fake(events: str, tools: Any = ()) -> Starlette:
    async def create_session(request: Request) -> Response:
        return Response("event: task_id\r\ndata: one\r\n\r\n", media_type="text/event-stream")

    async def call(request: Request) -> Response:
        assert request.headers["X-Session-ID"] == "one"
        return Response(events, media_type="text/event-stream")

    def told(value: Any) -> Any:
        async def answer(request: Request) -> JSONResponse:
            return JSONResponse(value)

        return answer

    spec = {"name": "go", "description": "", "input_schema": None}
    answers = {
        "list_environments": ["room"], "create": {}, "delete": {}, "room/prompt": [{"text": "Go."}],
        "room/splits": [{"name": "train", "type": "train"}], "room/num_tasks": {"num_tasks": 1},
        "room/task_tools": {"tools": [spec, *tools]},
    }  # fmt: skip
    routes = [Route(f"/{k}", told(v), methods=["GET", "POST"]) for k, v in answers.items()]
    routes += [Route("/create_session", create_session, methods=["POST"])]
    return Starlette(routes=[*routes, Route("/room/call", call, methods=["POST"])])


def end(result: Any) -> str:
    return f"event: task_id\ndata: 7\n\n: ping\n\nevent: end\ndata: {json.dumps(result)}\n\n"


def test_a_refused_call_is_its_result_and_the_episode_goes_on(serve: Callable[[Any], str]) -> None:
    env = connect(serve(fake(end({"ok": False, "error": "not now"}))))
    env.reset(seed=1)
    observation, *_ = env.step(katgym.assistant("", [("go", {})]))
    assert observation[0]["content"] == "not now" and env.is_running
    assert env.step("done")[1:3] == (0.0, True)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ("event: error\ndata: on fire\n\n", "fails at 'room/call': on fire"),
        ("event: chunk\ndata: {\n\n", "without a result"),
        (end("x"), "gives no result of 'go'"),
        (end({"ok": True, "output": {"reward": "much"}}), "no number as a reward: 'much'"),
        (end({"ok": True, "output": {"reward": 1}}), "gives no blocks of text"),
    ],
)
def test_a_server_that_misbehaves_breaks_the_episode_and_is_no_reward_of_0(
    serve: Callable[[Any], str], events: str, text: str
) -> None:
    env = connect(serve(fake(events)))
    env.reset(seed=1)
    with pytest.raises(katgym.InfrastructureError) as caught:
        env.step(katgym.assistant("", [("go", {})]))
    assert text in str(caught.value)
    env.close()
    assert env.last_reward is None


def test_tools_that_are_none_and_servers_that_are_not_there_are_infrastructure(
    serve: Callable[[Any], str],
) -> None:
    with pytest.raises(katgym.InfrastructureError, match="has tools that are none"):
        connect(serve(fake("", tools=[{"name": 3}]))).reset(seed=1)
    with pytest.raises(katgym.InfrastructureError, match="fails at"):
        connect("http://127.0.0.1:9").reset(seed=1)
    with pytest.raises(katgym.UsageError, match="http://HOST:PORT, got 'localhost:80'"):
        connect("localhost:80").reset(seed=1)
    with pytest.raises(katgym.UsageError, match="needs a server: url="):
        katgym.make("ors/Server-v0").reset(seed=1)
