"""Interface of a policy: it opens a session per episode, and the session answers turn by turn.

Two kinds exist. A `TokenPolicy` maps prompt token ids to token ids with log-probabilities, and its
sessions keep the ids (`token_policy.py`). Any other policy answers with messages and records no
tokens: fine for evaluation, refused where tokens are asked for.

Not here: URIs (`policies/uri.py`); the policies themselves (one module each).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from katgym.environment.messages import Message
from katgym.environment.tool import Tool
from katgym.errors import UsageError
from katgym.policies.expert_routes import cut_routes
from katgym.policies.version_span import VersionSpan, check_spans, oldest_version

if TYPE_CHECKING:
    from katgym.environment.env import Env


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are sampled; recorded with every rollout.

    Log-probabilities are those of the sampling distribution at `temperature`, over the full
    vocabulary; with `top_p` or `top_k` set they are still the untruncated ones.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Share of the probability that tokens are taken from, the likeliest first; 1 keeps all."""
    top_k: int = 0
    """Tokens kept; 0 keeps all."""
    max_tokens: int = 512
    """Tokens sampled per turn."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UsageError(f"temperature is >= 0, got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is in (0, 1], got {self.top_p!r}")
        if self.top_k < 0:
            raise UsageError(f"top_k is >= 0, got {self.top_k!r}")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is >= 1, got {self.max_tokens!r}")


class BranchReason(StrEnum):
    """Why a prompt does not extend the tokens of the turn before it."""

    RETOKENIZED = "retokenized"
    THINK_STRIPPED = "think_stripped"
    COMPACTION = "compaction"
    REWRITE = "rewrite"
    SUB_AGENT = "sub_agent"


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens of one model call, as a delta to an earlier call of the same rollout.

    The prompt is the first `num_shared` tokens of call `parent` (its prompt followed by its
    completion), followed by `prompt_ids`; `parent` is None for a root, `num_shared` then 0.
    `policy_logprobs` has one natural-log probability per entry of `completion_ids`, and
    `version_spans` say which weights sampled which of them, without a gap. Empty: they are not
    known, as of text that a teacher wrote and a renderer turned into tokens. `routes` are the
    experts of a mixture of experts that ran the tokens, from the one before `prompt_ids` to the
    last but one (`expert_routes.py`); empty: not told.

    Raises `UsageError` for spans that do not cover `completion_ids`, and routes of other tokens.

    Example:
        TokenRecord(parent=0, num_shared=57, prompt_ids=[2, 198], completion_ids=[504, 2],
                    policy_logprobs=[-0.3, -0.01],
                    version_spans=[VersionSpan(version=3, start=0, end=2)])
    """

    parent: int | None = None
    num_shared: int = 0
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] = ()
    policy_logprobs: Sequence[float] = ()
    version_spans: Sequence[VersionSpan] = ()
    branch: BranchReason | None = None
    routes: bytes = b""

    def __post_init__(self) -> None:
        check_spans(self.version_spans, len(self.completion_ids))
        num = self.num_shared + len(self.prompt_ids) + len(self.completion_ids)
        if cut_routes(self.routes, num_shared=self.num_shared, num_tokens=num) != self.routes:
            raise UsageError("routes tell of tokens of the parent; cut_routes leaves them out")

    @property
    def policy_version(self) -> int:
        """The oldest weights that sampled a token of it; 0 where none are known."""
        return oldest_version(self.version_spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One model call's answer: the assistant message, and the tokens where there are any."""

    message: Message
    finish_reason: str = "stop"
    """`stop`, `length` (cut at `max_tokens`) or `tool_calls`."""
    tokens: TokenRecord | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeContext:
    """What a policy may know when an episode starts.

    `env` is for the built-in policies that play by looking behind the curtain (`oracle`,
    `random`); a learned policy uses `tools` only.
    """

    env: Env
    tools: Mapping[str, Tool] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    """Seed of this episode's sampling; None draws a fresh one."""
    seat: str = "player"
    max_context_tokens: int | None = None
    """Prompt plus completion tokens allowed; None is the policy's own limit."""
    max_episode_tokens: int | None = None
    """Completion tokens allowed over all calls. The loop keeps it, by what completions tell."""

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools as OpenAI function-tool objects, in the env's order."""
        return [tool.to_openai() for tool in self.tools.values()]


class Session(abc.ABC):
    """One episode's side of a policy."""

    @abc.abstractmethod
    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        """Answer the conversation so far with at most `max_tokens` tokens.

        Raises `PolicyError` for a server that is down, slow or wrong, and `ContextLengthError`
        when the conversation no longer fits.
        """

    async def aclose(self) -> None:  # noqa: B027 - most sessions hold nothing
        """Release what the session holds; called once, also after a failure."""


class Policy(abc.ABC):
    """Something that plays; shared by concurrent episodes."""

    name: str
    """URI or name, recorded with every rollout."""
    records_tokens: bool = False
    """Whether its completions carry token ids and log-probabilities."""
    holds_model: bool = False
    """Whether each process that makes one of it loads a model, as `hf:` does."""

    @abc.abstractmethod
    def start(self, context: EpisodeContext) -> Session:
        """Open a session for one episode."""

    async def aclose(self) -> None:  # noqa: B027 - most policies hold nothing
        """Release models, connections and workers; may be called twice."""

    def describe(self) -> dict[str, Any]:
        """Return what identifies the policy in `lock.json` (model, revision, versions)."""
        return {"name": self.name}
