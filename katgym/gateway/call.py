"""One model call as every API's request becomes, and the answer that every API's reply is made of.

Not here: reading and writing the APIs (`wire/`); getting the answer (`answering/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.messages import Message
from katgym.version_span import VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSampling:
    """How an agent wants its answer sampled; None leaves it to the model server."""

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
    tool_choice: str | Mapping[str, Any] = "auto"
    """`auto`, `required`, or an OpenAI object naming a function; with "none", `tools` is empty."""
    is_parallel: bool = True
    """Whether one answer may hold several tool calls."""
    prompt_text: str | None = None
    prompt_ids: Sequence[int] | None = None
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

    @property
    def is_chat(self) -> bool:
        """Whether it holds messages rather than a prompt."""
        return self.prompt_text is None and self.prompt_ids is None

    @property
    def is_constrained(self) -> bool:
        """Whether only the model server's own chat route can answer it."""
        return bool(self.constraints) or (bool(self.tools) and self.tool_choice != "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sampled answer, exact in tokens and readable as a message."""

    message: Message
    completion_ids: Sequence[int]
    policy_logprobs: Sequence[float]
    versions: Sequence[VersionSpan]
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
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

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.reply.prompt_ids)

    @property
    def num_completion_tokens(self) -> int:
        """Sampled tokens of all answers."""
        return sum(len(a.completion_ids) for a in self.reply.answers)
