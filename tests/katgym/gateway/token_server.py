"""A model server that streams token ids as vLLM does, and breaks in the middle when told to.

    python token_server.py --port 8901 --allowed 2 --gate go --log sent.bin -- 104 105 300

It knows one answer, and goes on with what follows of it on its prompt's end, so that an answer is
the same wherever it was broken off. Not here: chats (`scripted_server.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

GENERATE = "/inference/v1/generate"


def logprob(position: int, token: int) -> float:
    """Return the log-probability of a token at a place of its context."""
    return -((position * 7919 + token * 104729) % 1000) / 997.0


class TokenServer:
    """`fault`: what happens after `fault_after` tokens, `num_faults` times.

    `cut` (in the middle of a line), `end` (without a word), `garbage`, `foreign` (JSON of another
    kind), `error`, `abort`, `hang`; `refuse` does not stream at all.
    """

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer
        self.fault = ""
        self.fault_after = 0
        self.num_faults = 1
        self.allowed = math.inf
        """Tokens that it may have sent; streams wait with more."""
        self.is_open: Callable[[], bool] = lambda: False
        """Whether it may send more after all."""
        self.version = "7"
        """Label of its weights."""
        self.has_done = True
        self.log = -1
        """A file that gets a byte for each token that was sent."""
        self.requests: list[dict[str, Any]] = []
        self.num_sent = 0
        self.num_left = 0
        """Clients that went in the middle."""

    def application(self) -> Starlette:
        posts = {GENERATE: self.generate, "/v1/completions": self.complete}
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        for path, told in {
            "/health": {},
            "/v1/models": {"data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]},
            "/openapi.json": {"paths": {GENERATE: {}}},
        }.items():
            routes.append(Route(path, lambda _, told=told: JSONResponse(told)))
        return Starlette(routes=routes)

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        return await self.respond(request, body, body["token_ids"], body["sampling_params"])

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        return await self.respond(request, body, body["prompt"], body)

    async def respond(
        self, request: Request, body: Any, prompt: list[int], params: dict[str, Any]
    ) -> Response:
        if "x-katgym-probe" in request.headers:
            while self.fault == "hang" and not self.num_faults:
                await asyncio.sleep(0.05)
            return JSONResponse({"choices": [self.whole(prompt, [1], {})]})
        self.requests.append({"prompt": prompt, "params": params, **body})
        sampled = self.rest(prompt)[: params["max_tokens"]]
        if not body.get("stream"):
            choices = [self.whole(prompt, sampled, params, i) for i in range(params.get("n", 1))]
            return JSONResponse({"choices": choices})
        if self.fault == "refuse":
            error = {"message": "stream is not supported by this route"}
            return JSONResponse({"error": error}, status_code=400)
        events = self.stream(prompt, sampled, params)
        return StreamingResponse(events, media_type="text/event-stream")

    def rest(self, prompt: list[int]) -> list[int]:
        """Return what follows on a prompt that may end with a part of the answer."""
        answer = self.answer
        num = next(n for n in range(len(answer), -1, -1) if prompt[len(prompt) - n :] == answer[:n])
        return answer[num:]

    def whole(
        self, prompt: list[int], sampled: list[int], params: dict[str, Any], index: int = 0
    ) -> dict[str, Any]:
        return self.part(prompt, 0, sampled, self.reason(sampled, params), index)

    @staticmethod
    def reason(sampled: list[int], params: dict[str, Any]) -> str:
        return "length" if len(sampled) == params.get("max_tokens") else "stop"

    def part(
        self, prompt: list[int], start: int, ids: list[int], reason: str | None, index: int = 0
    ) -> dict[str, Any]:
        values = [logprob(len(prompt) + start + i, token) for i, token in enumerate(ids)]
        spans = [{"version": self.version, "start": 0, "end": start + len(ids)}]
        entries = [{"token_id": t, "logprob": v} for t, v in zip(ids, values, strict=True)]
        return {
            "index": index,
            "text": "",
            "token_ids": ids,
            "finish_reason": reason,
            "weight_versions": spans if reason else None,
            "logprobs": {"content": entries, "token_logprobs": values},
        }

    async def stream(
        self, prompt: list[int], sampled: list[int], params: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        num_choices = params.get("n", 1)
        try:
            for place, token in enumerate(sampled):
                while self.num_sent >= self.allowed and not self.is_open():
                    await asyncio.sleep(0.005)
                if self.fault and place >= self.fault_after and self.num_faults > 0:
                    self.num_faults -= 1
                    async for broken in self.break_off(prompt, place):
                        yield broken
                    return
                is_last = place == len(sampled) - 1
                reason = self.reason(sampled, params) if is_last else None
                for index in range(num_choices):
                    part = self.part(prompt, place, [token], reason, index)
                    yield b"data: " + json.dumps({"choices": [part]}).encode() + b"\n\n"
                    self.num_sent += 1
                    if self.log >= 0:
                        os.write(self.log, b".")
            if self.has_done:
                yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.num_left += 1
            raise

    async def break_off(self, prompt: list[int], place: int) -> AsyncIterator[bytes]:
        match self.fault:
            case "cut":
                yield b'data: {"choices": [{"index": 0, "token_'
                raise ConnectionResetError
            case "end":
                return
            case "garbage":
                yield b"data: \xff\xfe no JSON\n\n"
            case "foreign":
                yield b'data: {"choices": [{"index": 0, "token_ids": ["x"], "logprobs": null}]}\n\n'
            case "error":
                yield b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n'
            case "abort":
                part = self.part(prompt, place, [], "abort")
                yield b"data: " + json.dumps({"choices": [part]}).encode() + b"\n\n"
            case "hang":
                while self.fault:
                    await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--allowed", type=int, required=True)
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("answer", type=int, nargs="+")
    args = parser.parse_args()
    server = TokenServer(args.answer)
    server.allowed, server.is_open = args.allowed, args.gate.exists
    with contextlib.closing(open(args.log, "ab", buffering=0)) as log:
        server.log = log.fileno()
        uvicorn.run(server.application(), port=args.port, log_level="critical", access_log=False)


if __name__ == "__main__":
    main()
