"""Model servers that sleep as long as GPUs of a given speed would compute.

    python trainer/benchmarks/cluster/sleeping_servers.py --model models/tiny --ports 8001 8002

Each goes in rounds, as vLLM does: a round takes as long as reading the weights and so much for each
sequence that gets a token in it, and for each token of a prompt that is computed beside. Requests
freeze while it is paused or asleep, and are computed again afterwards, or are given up with what
they have; a session's prefix is known until then. What is sampled is noise, as long as a lognormal
says; with `--is-true` each round samples from the model as it is then, a tiny one, which scores the
probe after a sync, too. `GET /busy` tells the seconds in which it computed, and tokens. Not here:
who asks (`placements.py`, `learning.py`).
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

import torch
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
    prompt: list[int]
    num_prompt: int
    """Tokens to compute before the next is sampled."""
    num_wanted: int
    """Tokens to sample at most."""
    stop: int
    """Token that ends an answer."""
    sampled: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
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
            begun = list(self.decoding)
            at += took
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            self.busy_s += took
            # Those that were given up meanwhile are done.
            sampling = [sequence for sequence in begun if not sequence.done.is_set()]
            self.num_sampled += len(sampling)
            self.sample(sampling)
            self.decoding += [sequence for sequence in ready if not sequence.done.is_set()]
            for sequence in sampling:
                is_whole = len(sequence.sampled) == sequence.num_wanted
                if is_whole or sequence.sampled[-1] == sequence.stop:
                    self.decoding.remove(sequence)
                    self.known[sequence.session] = len(sequence.prompt) + len(sequence.sampled)
                    sequence.done.set()

    def sample(self, sampling: list[Sequence]) -> None:
        """Append a token to each."""
        for each in sampling:
            # One letter, which no tokenizer merges; the last token ends the answer.
            is_last = len(each.sampled) + 1 == each.num_wanted
            each.sampled.append(each.stop if is_last else LETTER)
            each.logprobs.append(-3.0)

    def num_tokens(self, session: str, ids: list[int]) -> int:
        """Return how many tokens are to be sampled after a prompt at most."""
        # What another server has sampled of it, and how long it is to be, wherever that ends.
        begun = next(n for n, token in enumerate(reversed(ids)) if token != LETTER)
        luck = random.Random(f"{session} {len(ids) - begun}")
        drawn = luck.gauss(-(ANSWER_SIGMA**2) / 2, ANSWER_SIGMA)
        return max(1, round(ANSWER_TOKENS * math.exp(drawn)) - begun)

    def forget(self) -> None:
        """Compute all that runs anew."""
        self.known.clear()
        self.waiting.extend(self.decoding)
        self.decoding.clear()
        for sequence in self.waiting:
            sequence.num_prompt = len(sequence.prompt) + len(sequence.sampled)

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
        session = request.headers.get("x-session-id", "")
        known = min(self.known.get(session, 0), len(ids) - 1)
        wanted = min(body["max_tokens"], self.num_tokens(session, ids))
        sequence = Sequence(session, ids, len(ids) - known, wanted, body["stop_token_ids"][0])
        self.waiting.append(sequence)
        self.changed.set()
        await sequence.done.wait()
        sampled = sequence.sampled
        is_cut = len(sampled) == body["max_tokens"]
        reason = "length" if is_cut else "abort"
        return {
            "token_ids": sampled,
            "logprobs": {"token_logprobs": sequence.logprobs},
            "finish_reason": "stop" if sampled[-1:] == [sequence.stop] else reason,
        }


class TrueServer(SleepingServer):
    """Samples from its model, which computes each token from the first on."""

    @torch.inference_mode()
    def sample(self, sampling: list[Sequence]) -> None:
        if not sampling:
            return
        rows = [torch.tensor([*each.prompt, *each.sampled]) for each in sampling]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        ends = torch.tensor([len(row) - 1 for row in rows])
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        logprobs = self.model.lm_head(hidden[torch.arange(len(rows)), ends]).log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1)
        for each, token, value in zip(
            sampling, tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist(), strict=True
        ):
            each.sampled.append(token)
            each.logprobs.append(value)

    def num_tokens(self, session: str, ids: list[int]) -> int:
        return 1 << 30


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--is-true", action="store_true", help="sample from the model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = []
    for port in args.ports:
        server = (TrueServer if args.is_true else SleepingServer)(args.model)
        route = Route("/{path:path}", server.answer, methods=["GET", "POST"])
        config = uvicorn.Config(
            Starlette(routes=[route]), port=port, log_level="warning", access_log=False
        )
        work += [server.run(), uvicorn.Server(config).serve()]
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main())
