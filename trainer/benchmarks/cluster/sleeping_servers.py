"""Model servers that sleep as long as GPUs of a given speed would compute.

    python trainer/benchmarks/cluster/sleeping_servers.py --model models/tiny --ports 8001 8002

Each goes in rounds, as vLLM does: a round takes as long as reading the weights and so much for each
sequence that gets a token in it, and for each token of a prompt that is computed beside. Requests
freeze while it is paused or asleep, and are computed again afterwards, or are given up with what
they have; a session's prefix is known until then. What is sampled is noise, as long as a lognormal
says. The probe after a sync is scored by the model itself, a tiny one. `GET /busy` tells the
seconds in which it computed, and tokens. Not here: who asks (`placements.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from katgym_trainer.weight_sync.served_weights import scores

NAME = "tiny"
LETTER = 89
"""Of a new model's tokenizer: z."""
ROUND_S, SEQUENCE_S, PREFILL = 0.02, 0.004, 2000.0
"""Seconds of a round, more of it for each sequence; prompt tokens a second."""
CHUNK = 256
"""Prompt tokens of a round at most."""
ANSWER_TOKENS, ANSWER_SIGMA = 30.0, 0.6
READ_S, SLEEP_S = 0.4, 0.2
"""Seconds until weights are read, and until memory is given back."""
ROUTES = ("/pause", "/resume", "/update_weight_version", "/v1/completions", "/collective_rpc",
          "/sleep", "/wake_up")  # fmt: skip


@dataclasses.dataclass(eq=False)
class Sequence:
    """A request."""

    session: str
    context: int
    num_prompt: int
    """Tokens to compute before the next is sampled."""
    num_wanted: int
    num_sampled: int = 0
    done: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class SleepingServer:
    """One server."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.waiting: deque[Sequence] = deque()
        self.decoding: list[Sequence] = []
        self.known: dict[str, int] = {}
        """Tokens of a session's prefix."""
        self.is_frozen = False
        self.changed = asyncio.Event()
        self.busy_s, self.num_sampled = 0.0, 0

    async def run(self) -> None:
        """Go in rounds for ever; late ones are caught up with."""
        at = time.perf_counter()
        while True:
            if self.is_frozen or not (self.waiting or self.decoding):
                self.changed.clear()
                await self.changed.wait()
                at = time.perf_counter()
                continue
            took = ROUND_S + SEQUENCE_S * len(self.decoding) if self.decoding else 0.0
            ready, budget = [], CHUNK
            while self.waiting and budget:
                chunk = min(budget, self.waiting[0].num_prompt)
                self.waiting[0].num_prompt -= chunk
                took, budget = took + chunk / PREFILL, budget - chunk
                if not self.waiting[0].num_prompt:
                    ready.append(self.waiting.popleft())
            sampling = list(self.decoding)
            at += took
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            self.busy_s += took
            self.num_sampled += len(sampling)
            self.decoding += [sequence for sequence in ready if not sequence.done.is_set()]
            for sequence in sampling:
                if sequence.done.is_set():
                    continue  # given up meanwhile
                sequence.num_sampled += 1
                sequence.context += 1
                if sequence.num_sampled == sequence.num_wanted:
                    self.decoding.remove(sequence)
                    self.known[sequence.session] = sequence.context
                    sequence.done.set()

    def forget(self) -> None:
        """Compute all that runs anew."""
        self.known.clear()
        self.waiting.extend(self.decoding)
        self.decoding.clear()
        for sequence in self.waiting:
            sequence.num_prompt = sequence.context

    async def answer(self, request: Request) -> JSONResponse:
        """Answer any route."""
        path = request.url.path
        body: Any = await request.json() if await request.body() else {}
        if path == "/openapi.json":
            return JSONResponse({"paths": {route: {} for route in ROUTES}})
        if path == "/v1/models":
            card = {"id": NAME, "root": NAME, "max_model_len": 8192}
            return JSONResponse({"data": [card]})
        if path == "/busy":
            return JSONResponse({"busy_s": self.busy_s, "sampled": self.num_sampled})
        if path in ("/pause", "/sleep"):
            self.is_frozen = True
            if "mode=abort" in request.url.query:
                for sequence in (*self.waiting, *self.decoding):
                    sequence.done.set()
                self.waiting.clear()
                self.decoding.clear()
            await asyncio.sleep(SLEEP_S if path == "/sleep" else 0)
        elif path == "/collective_rpc":
            folder = Path(body["kwargs"]["weights_path"])
            self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
            await asyncio.sleep(READ_S)
        elif path == "/resume" or (path == "/wake_up" and not request.url.query):
            self.forget()
            self.is_frozen = False
            self.changed.set()
        elif path == "/v1/completions":
            return JSONResponse({"choices": [await self.complete(request, body)]})
        return JSONResponse({})

    async def complete(self, request: Request, body: Any) -> dict[str, Any]:
        """Sample, or score."""
        ids = body["prompt"]
        if "prompt_logprobs" in body:
            pairs = zip(ids[1:], scores(self.model, ids), strict=True)
            return {"prompt_logprobs": [None, *({str(t): {"logprob": v}} for t, v in pairs)]}
        # What another server has sampled of it, and how long it is to be, wherever that ends.
        begun = next(n for n, token in enumerate(reversed(ids)) if token != LETTER)
        session = request.headers.get("x-session-id", "")
        luck = random.Random(f"{session} {len(ids) - begun}")
        drawn = luck.gauss(-(ANSWER_SIGMA**2) / 2, ANSWER_SIGMA)
        wanted = max(1, round(ANSWER_TOKENS * math.exp(drawn)) - begun)
        known = min(self.known.get(session, 0), len(ids) - 1)
        sequence = Sequence(session, len(ids), len(ids) - known, min(body["max_tokens"], wanted))
        self.waiting.append(sequence)
        self.changed.set()
        await sequence.done.wait()
        # One letter, which no tokenizer merges; the last token ends the answer.
        num = sequence.num_sampled
        is_whole = num == sequence.num_wanted
        sampled = [LETTER] * (num - is_whole) + body["stop_token_ids"][:is_whole]
        return {
            "token_ids": sampled,
            "logprobs": {"token_logprobs": [-3.0] * num},
            "finish_reason": "stop" if is_whole else "abort",
        }


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    args = parser.parse_args()
    work = []
    for port in args.ports:
        server = SleepingServer(args.model)
        route = Route("/{path:path}", server.answer, methods=["GET", "POST"])
        config = uvicorn.Config(
            Starlette(routes=[route]), port=port, log_level="warning", access_log=False
        )
        work += [server.run(), uvicorn.Server(config).serve()]
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main())
