"""Policies that map prompt token ids to token ids with log-probabilities.

Not here: how a conversation becomes token ids and stays them (`rendering.py`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from katgym.errors import PolicyError, UsageError
from katgym.policies.base import EpisodeContext, Policy, Sampling
from katgym.rendering import TokenSession
from katgym.version_span import VersionSpan, check_spans, oldest_version

if TYPE_CHECKING:
    from renderers.base import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a generator answers: one log-probability per sampled token, the stop token included.

    Example:
        Generated(token_ids=[504, 2], policy_logprobs=[-0.3, -0.01], finish_reason="stop",
                  version_spans=one_span(3, 2))
    """

    token_ids: Sequence[int]
    policy_logprobs: Sequence[float]
    finish_reason: str = "stop"
    """`stop` or `length`."""
    version_spans: Sequence[VersionSpan] = ()
    """Which weights sampled which tokens, all of them; `one_span` where one version sampled all.
    Empty: not known."""

    @property
    def policy_version(self) -> int:
        """The oldest weights that sampled a token; 0 where none are known."""
        return oldest_version(self.version_spans)


class TokenPolicy(Policy):
    """A policy of which every token is recorded.

    A subclass sets the attributes and writes `generate`; sessions do the rest.
    """

    records_tokens = True
    renderer: Renderer
    tokenizer: Any
    """What `renderer` was made with; used to decode."""
    max_context_tokens: int
    """Prompt plus completion tokens of one call."""
    vocab_size: int
    """Token ids lie below it."""

    @abc.abstractmethod
    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        """Sample at most `max_tokens` tokens after `prompt_ids`.

        session_id: the same for all calls of one episode; for caches and for routing.
        Raises `PolicyError`.
        """

    def release(self, session_id: str) -> None:
        """Forget what was kept for a session; called once when it ends."""

    def start(self, context: EpisodeContext) -> TokenSession:
        return TokenSession(self, context)

    def check(self, generated: Generated, *, max_tokens: int) -> Generated:
        """Return `generated` if a learner could use it, else raise `PolicyError`."""
        ids, logprobs = generated.token_ids, generated.policy_logprobs
        if not ids:
            raise _bad(self.name, "no token at all")
        if len(ids) > max_tokens:
            raise _bad(self.name, f"{len(ids)} tokens where at most {max_tokens} were asked for")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise _bad(self.name, f"token id {token!r}, not an int in 0..{self.vocab_size - 1}")
        if not logprobs:
            raise PolicyError(
                f"policy {self.name!r} answered {len(ids)} tokens without log-probabilities",
                kind="policy_no_logprobs",
            )
        if len(logprobs) != len(ids):
            raise _bad(self.name, f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
        for value in logprobs:
            if not isinstance(value, float | int) or not math.isfinite(value) or value > 1e-3:
                raise _bad(self.name, f"log-probability {value!r}, not a finite number <= 0")
        try:
            check_spans(generated.version_spans, len(ids))
        except UsageError as e:
            raise _bad(self.name, str(e)) from e
        return generated


def _bad(name: str, what: str) -> PolicyError:
    return PolicyError(f"policy {name!r} answered {what}", kind="policy_bad_response")
