"""Fixtures: tokenizers of 270 tokens, a model of two tiny layers, contexts, a policy of given ids.

Not here: the real language model (`test_smollm2.py`).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import katgym
from katgym.environment.tool import Tool
from katgym.policies.base import EpisodeContext, Sampling

pytest.importorskip("renderers", reason="needs the extra 'hf'")
pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from byte_tokenizer import QWEN_TOKENS, byte_tokenizer
from random_qwen import random_qwen
from waiting import wait_until_async

from katgym.policies.token_policy import Generated, TokenPolicy


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Plain ChatML: calls are text."""
    return byte_tokenizer(system="You are small.")


@pytest.fixture(scope="session")
def qwen_tokenizer() -> Any:
    """The control tokens that the typed Qwen3 renderer needs."""
    return byte_tokenizer(QWEN_TOKENS, system="You are small.")


@pytest.fixture(scope="session")
def model() -> Any:
    """Two random layers with grouped heads, fp32."""
    return random_qwen(vocab_size=288, max_position_embeddings=2048, initializer_range=0.3).eval()


@pytest.fixture(scope="session")
def model_directory(model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model and the plain tokenizer as files."""
    path = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def search(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for
    """
    return query


class OneTask(katgym.Env):
    """An env with nothing in it, for contexts."""

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-0", prompt="Hi.")]


def make_context(*, has_tools: bool = True, seed: int | None = 7, **kwargs: Any) -> EpisodeContext:
    """Return a context with the tool `search`."""
    made = Tool.from_function(search)
    return EpisodeContext(
        env=OneTask(),
        tools={made.name: made} if has_tools else {},
        seed=seed,
        sampling=kwargs.pop("sampling", Sampling()),
        **kwargs,
    )


class GivenAnswers(TokenPolicy):
    """A token policy that answers given texts (control tokens spelled out) or given results."""

    name = "given"
    max_context_tokens = 10_000

    def __init__(self, tokenizer: Any, renderer: Any, answers: Sequence[Any]) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.vocab_size = len(tokenizer)
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []

    async def generate(self, prompt_ids: Sequence[int], **kwargs: Any) -> Generated:
        self.calls.append({"prompt_ids": list(prompt_ids), **kwargs})
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Generated):
            return answer
        ids = self.tokenizer.encode(answer, add_special_tokens=False)[: kwargs["max_tokens"]]
        reason = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        logprobs = [-0.5] * len(ids)
        return Generated(token_ids=ids, policy_logprobs=logprobs, finish_reason=reason)


@pytest.fixture
def context() -> Any:
    """`make_context`, for tests that cannot import this module."""
    return make_context


@pytest.fixture
def given_answers() -> type[GivenAnswers]:
    """The class `GivenAnswers`."""
    return GivenAnswers


@contextlib.asynccontextmanager
async def _held_after(policy: Any, num_tokens: int) -> AsyncIterator[None]:
    engine, is_held, goes_on = policy.engine, threading.Event(), threading.Event()

    def play_round() -> None:
        if engine.batch.num_decoded >= num_tokens:
            is_held.set()
            goes_on.wait()
        type(engine)._round(engine)

    engine._round = play_round
    try:
        await wait_until_async(is_held.is_set, f"{num_tokens} tokens")
        yield
    finally:
        goes_on.set()


@pytest.fixture
def held_after() -> Callable[..., contextlib.AbstractAsyncContextManager[None]]:
    """Stop an `HfPolicy` between two tokens, once it has decoded so many, while a block runs."""
    return _held_after


class FakeServer:
    """A real HTTP server on localhost; `script` holds one answer per request, the last repeats.

    An answer is (status, body) or (status, body, headers); a body that is no str is sent as
    JSON. "hang" is none, until the server is closed.
    """

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self._is_over = threading.Event()
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                self.answer(json.loads(self.rfile.read(length)))

            def answer(self, body: dict[str, Any]) -> None:
                fake.requests.append((self.path, body, dict(self.headers.items())))
                step = fake.script.pop(0) if len(fake.script) > 1 else fake.script[0]
                step = step(body) if callable(step) else step
                if step == "hang":
                    fake._is_over.wait()
                    return
                status, content, *headers = step
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                try:
                    self.send_response(status)
                    for key, value in (headers[0] if headers else {}).items():
                        self.send_header(key, value)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client gave up waiting, as it should

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A `FakeServer` with nothing in its script."""
    made = FakeServer()
    yield made
    made.close()
