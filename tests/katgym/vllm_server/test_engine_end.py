"""What ended a server, read from logs as vLLM 0.32 writes them, and told with its answers.

Not here: a real engine that ends (`tests/trainer/rl/test_rl_vllm.py`).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from katgym.vllm_server.middleware.engine_end import SEE_ABOVE, EngineEnd, find_cause

DEAD = f"vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. {SEE_ABOVE}"
ENGINE = "(EngineCore pid=7) ERROR 11-28 08:20:18 [core.py:1512]"
SERVER = "(APIServer pid=6) ERROR 11-28 08:20:18 [async_llm.py:906]"
HEAD = "RuntimeError: Unsupported CPU attention configuration: head_dim=16 isa=2"

REQUEST = f"{SERVER} ValueError: this request was no good"
"""A failure that has ended nothing."""
DIED = f"""(Worker pid=9) WARNING 11-28 08:19:01 [utils.py:5] Exception: no such primitive
{ENGINE} Traceback (most recent call last):
{ENGINE}   File "core.py", line 9, in step
{ENGINE} {HEAD}
{SERVER} Traceback (most recent call last):
{SERVER} {DEAD}
INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=6) ERROR 11-28 08:20:19 [x.py:1] asyncio.exceptions.CancelledError: shutdown
"""
OF_A_WORKER = f"""(Worker pid=9) ERROR 11-28 08:21:11 [multiproc_executor.py:1063] {HEAD}
{ENGINE} RuntimeError: Worker failed with error 'Unsupported', please check the stack trace above
{SERVER} {DEAD}
"""
NOT_STARTED = f"""{ENGINE} ValueError: No available memory for the cache blocks.
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
"""
INVALID = """(APIServer pid=6) pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=6)   Value error, the type `new` is not known [type=value_error]
(APIServer pid=6)     For further information visit https://errors.pydantic.dev
"""
GONE = "engine core exited unexpectedly"
LOGGED = f"(APIServer pid=6) WARNING 11-28 08:20:18 [x.py:1] MPClient: {GONE}; starting cleanup"
KILLED = f"""{REQUEST}
{LOGGED}
{SERVER} {DEAD}
"""
WORKER_KILLED = f"""{REQUEST}
{ENGINE} Worker proc Worker-1 died unexpectedly (exit code: -9), shutting down executor.
{ENGINE} RuntimeError: Executor failed.
{LOGGED}
{SERVER} {DEAD}
"""


def test_the_cause_is_the_error_before_those_that_follow_from_it() -> None:
    many = "INFO all is well\n" * 1000
    logs = {
        DIED: HEAD,
        f"{REQUEST}\n{many}{DIED}": HEAD,
        DIED + f"{SERVER} {DEAD}\n" * 5000: HEAD,  # a line for each request that was lost
        OF_A_WORKER: HEAD,
        NOT_STARTED: "ValueError: No available memory for the cache blocks.",
        f"{REQUEST}\n{many}{SERVER} {DEAD}": "",  # its own was not logged
        KILLED: GONE,
        WORKER_KILLED: "Worker proc Worker-1 died unexpectedly (exit code: -9)",
        DIED.replace(f"{SERVER} {DEAD}", f"{LOGGED}\n{SERVER} {DEAD}"): HEAD,
        "Traceback:\nModuleNotFoundError: No module named 'vllm'": (
            "ModuleNotFoundError: No module named 'vllm'"
        ),
        "INFO all is well": "",
    }
    assert {log: find_cause(log)[0] for log in logs} == logs
    assert find_cause(f"{many}{DIED}") == (HEAD, 1004)
    text, num_lines = find_cause(INVALID)
    assert "the type `new` is not known" in text and num_lines == 1


def app(log: Path, monkeypatch: pytest.MonkeyPatch) -> Starlette:
    """A server whose log is that of a file but for its first line."""
    start = log.read_bytes().index(b"\n") + 1
    monkeypatch.setenv("KATGYM_SERVER_LOG", f"{start}:{log}")
    quoted = {"text": f'as said: "error": {{"message": "{SEE_ABOVE}"}}', "error": None}
    error = {"error": {"message": f"EngineCore encountered an issue. {SEE_ABOVE}"}}

    async def stream(request: Request) -> Response:
        async def parts():
            yield f"data: {json.dumps(quoted)}\n\n".encode()
            yield f"data: {json.dumps(error)}\n\n".encode()

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def fail(request: Request) -> Response:
        return JSONResponse(error, status_code=500)

    async def fail_otherwise(request: Request) -> Response:
        return JSONResponse({"error": "out of luck"}, status_code=503)

    async def quote(request: Request) -> Response:
        return JSONResponse(quoted)

    made = Starlette(
        routes=[
            Route("/stream", stream), Route("/fail", fail), Route("/otherwise", fail_otherwise),
            Route("/quote", quote),
        ]
    )  # fmt: skip
    made.add_middleware(EngineEnd)
    return made


def test_answers_tell_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    head = HEAD.replace("isa=2", 'isa="x"')
    log.write_text(f"of the server before: {REQUEST}\n{DIED.replace(HEAD, head)}")

    async def ask() -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(app(log, monkeypatch))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            paths = ("/stream", "/fail", "/otherwise", "/quote")
            return {path: await client.get(path) for path in paths}

    told = asyncio.run(ask())
    assert told["/fail"].status_code == 500
    message = told["/fail"].json()["error"]["message"]
    assert message == f"EngineCore encountered an issue. It was: {head}"
    assert int(told["/fail"].headers["content-length"]) == len(told["/fail"].content)
    first, second = told["/stream"].text.strip().split("\n\n")
    quoted = told["/quote"].json()
    assert SEE_ABOVE in quoted["text"]  # a model may write what it wants
    assert json.loads(first.removeprefix("data: ")) == quoted
    assert json.loads(second.removeprefix("data: "))["error"]["message"] == message
    assert (told["/otherwise"].status_code, told["/otherwise"].json()["error"]) == (
        503,
        "out of luck",
    )
