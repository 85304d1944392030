"""A model server that takes no time: vLLM's chat answer of 512 prompt ids and 64 sampled ones.

    python gateway_upstream.py --port 8901

Ids come only to those who say `return_token_ids`, log-probabilities to those who say `logprobs`, as
from vLLM. `GET /health` tells how many calls there were. Not here: who calls it (`gateway.py`).
"""

from __future__ import annotations

import argparse
import json
import math

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

NUM_PROMPT, NUM_SAMPLED = 512, 64
PROMPT_IDS = [1000 + 37 * i for i in range(NUM_PROMPT)]
SAMPLED_IDS = [2000 + 91 * i for i in range(NUM_SAMPLED)]
LOGPROBS = [-math.log1p(i) / 3 for i in range(NUM_SAMPLED)]
_calls = 0


def answer(has_ids: bool, has_logprobs: bool) -> bytes:
    """Return the body of an answer: about 10 KB with everything."""
    words = [f" word{i:03d}" for i in range(NUM_SAMPLED)]
    content = [
        {"token": word, "logprob": value, "bytes": list(word.encode()), "top_logprobs": []}
        for word, value in zip(words, LOGPROBS, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(words), "tool_calls": []},
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": {"content": content} if has_logprobs else None,
        "token_ids": SAMPLED_IDS if has_ids else None,
    }
    usage = {"prompt_tokens": NUM_PROMPT, "completion_tokens": NUM_SAMPLED}
    usage["total_tokens"] = NUM_PROMPT + NUM_SAMPLED
    body = {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 0,
        "model": "mock",
        "choices": [choice],
        "prompt_token_ids": PROMPT_IDS if has_ids else None,
        "usage": usage,
    }
    return json.dumps(body).encode()


ANSWERS = {(i, p): answer(i, p) for i in (False, True) for p in (False, True)}


async def _chat(request: Request) -> Response:
    global _calls
    _calls += 1
    body = json.loads(await request.body())
    wanted = bool(body.get("return_token_ids")), bool(body.get("logprobs"))
    return Response(ANSWERS[wanted], media_type="application/json")


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "mock", "object": "model"}]})


async def _health(_: Request) -> Response:
    return JSONResponse({"calls": _calls})


APPLICATION = Starlette(
    routes=[
        Route("/v1/chat/completions", _chat, methods=["POST"]),
        Route("/v1/models", _models),
        Route("/health", _health),
    ]
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    uvicorn.run(APPLICATION, port=port, log_level="warning", access_log=False, backlog=4096)
