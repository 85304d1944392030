"""A model server whose answers follow from its prompts, with the routes and answers of vLLM.

Token ids are bytes: a message is 256 + its role, its text and 300. The answer to a conversation is
decided by its last message:

- `say TEXT` says TEXT; `think TEXT` thinks first; `call NAME JSON` calls a tool, several joined
  by `;`; anything else is echoed;
- `fail N` answers 500 the first N times; `status N` answers N; `hang` never answers.

`script` holds answers to give instead, one after another: what to say, or which tools to call.

Not here: a real vLLM (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from katgym.policies.expert_routes import write_routes

ROLES = ("system", "user", "assistant", "tool")
END = 300
THINK = 301
MODEL = "tiny"
_LIMITS: Any = {"timeout_graceful_shutdown": 1, "timeout_keep_alive": 3600}
"""No connection is closed at the moment at which it is used again."""


def message_ids(message: Mapping[str, Any]) -> list[int]:
    """Return the ids of one message of a prompt; thinking is not part of it."""
    text = message.get("content") or ""
    for call in message.get("tool_calls") or ():
        text += call_text(call["function"]["name"], call["function"]["arguments"])
    return [256 + ROLES.index(message["role"]), *text.encode(), END]


def call_text(name: str, arguments: str) -> str:
    return f"<{name} {arguments}>"


def prompt_ids(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return a conversation's prompt."""
    ids = [i for m in messages for i in message_ids(m)]
    return [*ids, 256 + ROLES.index("assistant")]


def logprob(position: int, token: int) -> float:
    """Return the log-probability of a token: a number that no float32 holds exactly."""
    return -((position * 7919 + token * 104729) % 1000) / 997.0


class ScriptedServer:
    """Runs in a thread; `with ScriptedServer() as server` gives `server.url`."""

    def __init__(self, *, port: int = 0, has_ids: bool = True, max_model_len: int = 4096) -> None:
        self._port = port
        self.reset(has_ids=has_ids, max_model_len=max_model_len)

    def reset(self, *, has_ids: bool = True, max_model_len: int = 4096) -> None:
        """Have it be as new, for the next test."""
        self.has_ids = has_ids
        self.max_model_len = max_model_len
        self.num_calls = 0
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.is_held = False
        """Whether answers wait."""
        self.fault = ""
        """What chats are answered, whatever they say: `status N`, or `html`."""
        self.retry_after_s: float | None = None
        """What errors ask to wait."""
        self.slow_s = 0.0
        """Seconds that an answer of more than one token takes."""
        self.is_slow = False
        """Whether answers of more than one token wait."""
        self.num_probes = 0
        """Chats that no agent asked for."""
        self.tokens: dict[int, int] = {}
        """Ids that stand for another byte than their own, in what `/tokenize` tells."""
        self.tells_tokens = False
        """Whether `/tokenize` tells ids, and `/detokenize` their text."""
        self.system_text = ""
        """What its chat template adds to every conversation."""
        self.drift = 0.0
        """Of its log-probabilities of plain completions."""
        self.model = MODEL
        self.encode: Callable[[str], Sequence[int]] = str.encode
        self.decode: Callable[[list[int]], str] = lambda ids: "".join(map(chr, ids))
        self.given: list[list[int]] = []
        """What completions answer, one after the other; by default `done`."""
        self.tells_experts = False
        """Whether answers say which expert each token went to."""
        self.finish_reason = "stop"
        """Why answers end that are not cut."""
        self.versions = ("3", "4")
        """Labels of the weights that sample a generated answer's two halves."""
        self.cards: list[dict[str, Any]] = []
        """What `/v1/models` lists; empty: the one model."""
        self.routes: set[str] = set()
        """What `/openapi.json` lists; nothing: there is no such route."""
        self.script: list[str | list[tuple[str, str]]] = []
        """Text, or names and JSON arguments of tool calls."""
        self.side_answer: str | None = None
        """What chats without tools are told instead, whenever an agent asks for a title say."""
        self._failures: Counter[str] = Counter()

    def __enter__(self) -> ScriptedServer:
        self._socket = socket.create_server(("127.0.0.1", self._port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/openapi.json", self._openapi),
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            Route("/pause", self._pause, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", **_LIMITS)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    # ---- routes

    async def _health(self, _: Request) -> Response:
        return JSONResponse({})

    async def _pause(self, _: Request) -> Response:
        raise AssertionError("a control route was reached through the gateway")

    async def _models(self, _: Request) -> Response:
        card = {
            "id": self.model,
            "object": "model",
            "max_model_len": self.max_model_len,
            "root": MODEL,
        }
        cards = self.cards or [{**card, "secret": "of the server"}]
        return JSONResponse({"object": "list", "data": cards})

    async def _openapi(self, _: Request) -> Response:
        if not self.routes:
            return _error(404, "no documentation")
        return JSONResponse({"paths": {route: {} for route in self.routes}})

    async def _generate(self, request: Request) -> Response:
        body = await self._body(request)
        ids = body["token_ids"]
        choices = []
        for index in range(body["sampling_params"].get("n", 1)):
            is_probe = "x-katgym-probe" in request.headers
            sampled = [END] if is_probe else self._sampled()
            content = [
                {"token_id": t, "logprob": logprob(len(ids) + i, t)} for i, t in enumerate(sampled)
            ]
            half = len(sampled) // 2
            first, second = self.versions
            spans = [(0, half, first), (half, len(sampled), second)]
            choices.append(
                {
                    "index": index,
                    **self._experts(len(ids) + len(sampled), body["sampling_params"]),
                    "token_ids": sampled,
                    "logprobs": {"content": content},
                    "finish_reason": self.finish_reason,
                    "weight_versions": [
                        {"start": start, "end": end, "version": version}
                        for start, end, version in spans
                    ],
                }
            )
        return JSONResponse({"request_id": "x", "choices": choices})

    def _experts(self, num_tokens: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the experts of a call's tokens, each the token's place modulo 256."""
        if not self.tells_experts:
            return {}
        places = np.arange(asked.get("routed_experts_prompt_start", 0), num_tokens - 1) % 256
        data = write_routes(places[:, None, None])
        return {"routed_experts": base64.b64encode(data).decode()}

    def _sampled(self) -> list[int]:
        return self.given.pop(0) if self.given else [*b"done", END]

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        if "messages" in body:
            ids = [*self.system_text.encode(), *prompt_ids(body["messages"])]
        else:
            ids = list(self.encode(body["prompt"]))
        told = {"tokens": [self.tokens.get(i, i) for i in ids]} if self.tells_tokens else {}
        return JSONResponse({"count": len(ids), **told})

    async def _detokenize(self, request: Request) -> Response:
        ids = (await request.json())["tokens"]
        if not self.tells_tokens or max(ids) > 255:
            return _error(400, "no such ids")
        meant = {there: here for here, there in self.tokens.items()}
        return JSONResponse({"prompt": self.decode([meant.get(i, i) for i in ids])})

    async def _chat(self, request: Request) -> Response:
        body = await self._read(request)
        self.num_probes += "x-katgym-probe" in request.headers
        step = self._next_step(body, request)
        await self._released()
        if body["model"] not in {self.model, *(card["id"] for card in self.cards)}:
            return _error(404, f"The model `{body['model']}` does not exist.")
        if self.fault == "html":
            return Response("<html>Bad gateway</html>", media_type="text/html")
        asked = self.fault or step
        fault = await self._fault(asked) if isinstance(asked, str) else None
        if fault is not None:
            return fault
        if body.get("max_tokens") != 1:
            await asyncio.sleep(self.slow_s)
            while self.is_slow:
                await asyncio.sleep(0.01)
        ids = prompt_ids(body["messages"])
        if len(ids) >= self.max_model_len:
            return _error(400, f"This model's maximum context length is {self.max_model_len}.")
        choices = [self._choice(i, ids, step, body) for i in range(body.get("n", 1))]
        return JSONResponse(
            {
                "id": "x",
                "choices": choices,
                "prompt_token_ids": ids if self.has_ids else None,
                "usage": {"prompt_tokens": len(ids)},
            }
        )

    def _next_step(self, body: Mapping[str, Any], request: Request) -> str | list[tuple[str, str]]:
        """Return what a chat is answered. On its arrival: a held one takes no later one's step."""
        if "x-katgym-probe" not in request.headers:
            if self.side_answer is not None and not body.get("tools"):
                return f"say {self.side_answer}"
            if self.script:
                step = self.script.pop(0)
                return f"say {step}" if isinstance(step, str) else step
        return body["messages"][-1]["content"] or ""

    def _choice(
        self,
        index: int,
        ids: list[int],
        asked: str | list[tuple[str, str]],
        body: Mapping[str, Any],
    ) -> Any:
        if isinstance(asked, str):
            message, sampled = _answer(asked, self.num_calls, index)
        else:
            message, sampled = _called(asked, self.num_calls)
        limit = body.get("max_tokens") or 10_000
        reason = "length" if len(sampled) > limit else self.finish_reason
        sampled = sampled[:limit]
        content = [
            {"token": chr(t), "logprob": logprob(len(ids) + i, t), "top_logprobs": []}
            for i, t in enumerate(sampled)
        ]
        return {
            "index": index,
            **self._experts(len(ids) + len(sampled), body),
            "message": message,
            "finish_reason": reason,
            "logprobs": {"content": content} if body.get("logprobs") else None,
            "token_ids": sampled if self.has_ids and body.get("return_token_ids") else None,
        }

    async def _completions(self, request: Request) -> Response:
        body = await self._body(request)
        prompt = body["prompt"]
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        is_probe = "x-katgym-probe" in request.headers
        sampled = [*b"done", END] if is_probe else self._sampled()
        values = [logprob(len(ids) + i, t) + self.drift for i, t in enumerate(sampled)]
        choice = {
            "index": 0,
            **self._experts(len(ids) + len(sampled), body),
            "text": "done",
            "finish_reason": "stop",
            "token_ids": sampled,
            "prompt_token_ids": ids,
            "logprobs": {"token_logprobs": values, "tokens": ["d", "o", "n", "e", ""]},
        }
        return JSONResponse({"choices": [choice]})

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await self._read(request)
        await self._released()
        return body

    async def _read(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        if "x-katgym-probe" not in request.headers:
            self.num_calls += 1
            self.requests.append((request.url.path, body))
            self.headers.append(dict(request.headers))
        return body

    async def _released(self) -> None:
        while self.is_held:
            await asyncio.sleep(0.01)

    async def _fault(self, last: str) -> Response | None:
        word, _, rest = last.partition(" ")
        if word == "hang":
            await asyncio.sleep(3600)
        if word == "status":
            told = _error(int(rest), f"status {rest}")
            if self.retry_after_s is not None:
                told.headers["retry-after"] = str(self.retry_after_s)
            return told
        if word == "fail" and self._failures[last] < int(rest):
            self._failures[last] += 1
            return _error(500, "told to fail")
        return None


def _answer(last: str, number: int, index: int) -> tuple[dict[str, Any], list[int]]:
    """Return an answer as a message and as ids."""
    word, _, rest = last.partition(" ")
    if word == "call":
        name_and_arguments = [part.split(maxsplit=1) for part in rest.split(";")]
        return _called([(name, given) for name, given in name_and_arguments], number)
    if word == "think":
        text = rest
        message = {"role": "assistant", "content": text, "reasoning_content": "hmm"}
        return message, [THINK, *b"hmm", THINK, *text.encode(), END]
    text = rest if word == "say" else f"echo {last}"
    if index:
        text += f" ({index})"
    return {"role": "assistant", "content": text}, [*text.encode(), END]


def _called(parts: Sequence[tuple[str, str]], number: int) -> tuple[dict[str, Any], list[int]]:
    """Return an answer that calls tools."""
    calls = [
        {"id": f"c{number}_{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(parts)
    ]
    text = "".join(call_text(n, a) for n, a in parts)
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return message, [*text.encode(), END]


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that nobody else gets, also while the server that listens there is away."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextlib.contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve an application in a thread; yields its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        server = uvicorn.Server(uvicorn.Config(application, log_level="error", **_LIMITS))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            threading.Event().wait(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
