"""One model call: what every API's request becomes, and what every API's answer is made of.

Not here: reading and writing the APIs (`wire/`); getting the answer (`answering/`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from katgym.environment.messages import Message
from katgym.gateway.conversation import CallPlace, hash_chain, hash_text
from katgym.gateway.errors import GatewayError
from katgym.gateway.session_table import LiveSession
from katgym.policies.version_span import VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSampling:
    """How an agent wants its answer sampled; None is the APIs' default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    """Tokens sampled; None: as many as the context has room for."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of vLLM's `SamplingParams`, as `min_p` or `logit_bias`."""

    def as_dict(self) -> dict[str, Any]:
        """Return what was asked for, by the names of vLLM."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop) or None,
            "seed": self.seed,
        }
        return {k: v for k, v in given.items() if v is not None} | dict(self.extra)

    def override(self, wanted: Mapping[str, Any]) -> CallSampling:
        """Return sampling in which `wanted` wins over what the agent asked for."""
        if not wanted:
            return self
        own = {f.name for f in fields(CallSampling)} - {"extra"}
        extra = {**self.extra, **{k: v for k, v in wanted.items() if k not in own}}
        return replace(self, **{k: v for k, v in wanted.items() if k in own}, extra=extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A request of an agent.

    Either `messages`, or for a plain completion `prompt_text` or `prompt_ids`.

    Example:
        ModelCall(route="openai/chat", model="m", messages=[{"role": "user", "content": "hi"}])
    """

    route: str
    model: str
    messages: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI function tools."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a tool here -> the namespace and the name under which the agent knows it."""
    tool_choice: str | Mapping[str, Any] = "auto"
    """`auto`, `required`, or an OpenAI object naming a function; with "none", `tools` is empty."""
    is_parallel: bool = True
    """Whether one answer may hold several tool calls."""
    prompt_text: str | None = None
    prompt_ids: Sequence[int] | None = None
    has_special_tokens: bool = True
    """Whether `prompt_text` gets what the tokenizer puts around texts, as a BOS in front."""
    is_echo: bool = False
    """Whether a plain completion repeats its prompt."""
    sampling: CallSampling = field(default_factory=CallSampling)
    num_choices: int = 1
    num_top_logprobs: int | None = None
    """None: the agent wants no log-probabilities; 0: of the sampled tokens alone."""
    constraints: Mapping[str, Any] = field(default_factory=dict)
    """What bends sampling or the chat template by the server's own means, as `response_format`."""
    is_stream: bool = False
    has_usage_chunk: bool = False
    """OpenAI's `stream_options.include_usage`."""
    previous_call_id: str | None = None
    """`messages` go on from this call's answer, which the agent does not send again."""
    has_previous_tools: bool = False
    """Whether it has the tools of that call."""
    is_thinking_told: bool = True
    """Whether the agent is told the model's thinking, where its API leaves that to it."""

    @property
    def is_chat(self) -> bool:
        """Whether it holds messages rather than a prompt."""
        return self.prompt_text is None and self.prompt_ids is None

    def chain(self) -> list[bytes]:
        """Return what tells its messages or its prompt from others; see `hash_chain`."""
        if self.is_chat:
            return hash_chain(self.messages, self.tools)
        if self.prompt_ids is not None:
            return [hash_text(self.prompt_ids)]
        return [hash_text(self.prompt_text or "", has_special_tokens=self.has_special_tokens)]

    def digest(self, chain: Sequence[bytes]) -> str:
        """Return 8 digits that tell what it asks for, whether or not its answer is streamed.

        chain: its own.
        """
        asked = [
            self.route, self.model, self.sampling.as_dict(), dict(self.constraints),
            self.tool_choice, self.is_parallel, self.num_choices, self.num_top_logprobs,
            self.is_echo, self.previous_call_id, chain[0].hex(), chain[-1].hex(),
        ]  # fmt: skip
        text = json.dumps(asked, sort_keys=True).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=4).hexdigest()

    @property
    def is_tool_forced(self) -> bool:
        """Whether its answer has to call a tool."""
        return bool(self.tools) and self.tool_choice != "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sampled answer, exact in tokens and readable as a message."""

    message: Message
    completion_ids: Sequence[int]
    policy_logprobs: Sequence[float]
    versions: Sequence[VersionSpan]
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    routes: bytes = b""
    """Experts of its prompt's and its own tokens but the last (`expert_routes.py`); or empty."""
    stop_string: str | None = None
    """Which of the stop strings ended it."""
    logprobs: Any = None
    """Log-probabilities in OpenAI's chat form, if the agent asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model server made of a call: one prompt, one answer or several."""

    prompt_ids: Sequence[int]
    answers: Sequence[Answer]
    upstream: str
    sent_s: float
    """Unix time at which the request went out."""
    answered_s: float
    num_cached_tokens: int = 0
    """Prompt tokens that the server had in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A reply with the names it goes out under."""

    call_id: str
    created_s: int
    """Unix time."""
    call: ModelCall
    reply: Reply
    is_partial: bool = False
    """Whether more of its one answer is to come."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.reply.prompt_ids)

    @property
    def num_completion_tokens(self) -> int:
        """Sampled tokens of all answers."""
        return sum(len(a.completion_ids) for a in self.reply.answers)


@dataclass(slots=True)
class Told:
    """What a stream has said of an answer; an API's `events` goes on from there."""

    is_begun: bool = False
    texts: dict[object, str] = field(default_factory=dict)
    """By part of the answer."""
    num_opened: int = 0
    """Parts that have begun, and of these..."""
    num_closed: int = 0
    num_events: int = 0

    def add(self, part: object, text: str) -> str:
        """Return what is new of a part's text, which is said hereby."""
        said = self.texts.get(part, "")
        # A text whose rest is not known yet is told without the blanks in front.
        start = 0 if text.startswith(said) else len(text) - len(text.lstrip())
        self.texts[part] = text[start:]
        return text[start + len(said) :]


@dataclass(slots=True)
class Progress:
    """An answer while it is made, for a client that reads it meanwhile."""

    latest: Served | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, served: Served) -> None:
        """Show how far the answer is."""
        self.latest = served
        self._changed.set()

    async def wait(self) -> None:
        """Return when there is more of it than at the last time."""
        await self._changed.wait()
        self._changed.clear()


class Dialect(Protocol):
    """An API that agents speak; each module of `wire/` with these names is one."""

    ROUTE: str
    KEEPALIVE: bytes
    """An event that says nothing."""

    def parse(self, body: Mapping[str, Any], /) -> ModelCall:
        """Return the call of a request body; raises `GatewayError`."""

    def servable(self, message: Message, /) -> Message:
        """Return an answer's message as the API can say it."""

    def render(self, served: Served, /) -> dict[str, Any]:
        """Return the body of an answer."""

    def events(self, served: Served, told: Told | None = None, /) -> Iterator[bytes]:
        """Yield an answer as server-sent events: what was not told of it yet."""

    def error(self, failure: GatewayError, /) -> dict[str, Any]:
        """Return the body of an error."""

    def error_event(self, failure: GatewayError, /) -> bytes:
        """Return an error that comes after a stream has begun."""


class CountingDialect(Dialect, Protocol):
    """An API that also counts a prompt's tokens."""

    def parse(self, body: Mapping[str, Any], /, *, is_counting: bool = False) -> ModelCall:
        """Return the call of a request body.

        is_counting: whether its tokens are counted alone.
        """

    def render_count(self, num_tokens: int, /) -> dict[str, Any]:
        """Return the body that tells a number of tokens."""


@dataclass(slots=True, kw_only=True)
class CallContext:
    """One call on its way through `Gateway.respond`; each stage fills in its part.

    Example:
        CallContext(session=session, api=openai_chat, body={"model": "m", "messages": [...]},
                    received_s=1.7e9)
    """

    session: LiveSession
    api: Dialect
    body: Mapping[str, Any] = field(default_factory=dict)
    received_s: float = 0.0
    """Unix time."""
    idempotency_key: str = ""
    """Calls of one session with the same key get the same answer; "" for no other call's."""
    call_id: str = ""
    """Made at random; or from the key, with what the call asks for behind it."""
    call: ModelCall = field(init=False)
    """As the agent asked; with the messages that it goes on from once it is placed."""
    chain: Sequence[bytes] = ()
    """Of a large call, which was parsed elsewhere and has no body here: its `hash_chain`."""
    place: CallPlace = field(init=False)
    model: str = ""
    """Asked of the model server: the owner's, or else the agent's."""
    version: int | None = None
    """Of all that the model samples, where it is an adapter of one version; else None."""
    sampling: CallSampling = field(default_factory=CallSampling)
    """Asked of the model server: what the owner wants wins over the agent's."""
    max_tokens: int | None = None
    """That the session may still sample; None for any number."""
    progress: Progress | None = None
    """Where the answer shows while it is made; None where nobody reads it before its end."""

    @property
    def is_large(self) -> bool:
        """Whether what is done with all its text is done beside the loop."""
        return bool(self.chain)

    def __post_init__(self) -> None:
        self.call_id = secrets.token_hex(12)

    def key_digest(self) -> str:
        """Return the 16 digits with which the ids of calls with its idempotency key begin."""
        name = f"{self.session.session_id}\0{self.idempotency_key}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(name, digest_size=8).hexdigest()
