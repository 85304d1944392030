"""A policy that plays a recorded rollout's answers, and asks the run's policy beside it.

A policy without tokens is asked for each answer. One with tokens is given the recorded ones: what
its chat format makes of them and of the recorded messages has to be the record, whatever an env
that is not deterministic says here. Not here: whether the model would have sampled them
(`rescore.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from katgym.environment.failure import FailureKind
from katgym.environment.messages import Message
from katgym.errors import ContextLengthError
from katgym.play.rollout import Rollout, Turn, parent_of, prompt_messages
from katgym.policies.base import (
    Completion,
    EpisodeContext,
    Policy,
    Sampling,
    Session,
    TokenRecord,
)
from katgym.policies.token_policy import Generated, TokenPolicy, TokenSession

BY_POLICY = (
    FailureKind.POLICY_UNAVAILABLE,
    FailureKind.POLICY_TIMEOUT,
    FailureKind.POLICY_BAD_RESPONSE,
    FailureKind.POLICY_NO_LOGPROBS,
    FailureKind.POLICY_REJECTED,
    FailureKind.POLICY_BUG,
)
"""Faults of a model call: the episode was waiting for an answer, and not over."""


class RecordedPolicy(Policy):
    """Plays one rollout's answers, then says that the context is full."""

    def __init__(self, rollout: Rollout, policy: Policy | None = None) -> None:
        """policy: asked for its answers, which are compared and not played."""
        self.name = rollout.policy
        self.rollout = rollout
        self.policy = policy
        self.num_asked = 0
        self.otherwise: list[str] = []
        """Where the policy answered otherwise than the record."""
        self.has_gone_on = False
        """Whether the policy answered where the record says that it failed."""
        self.is_used_up = False
        """Whether more answers were asked for than were recorded."""

    def start(self, context: EpisodeContext) -> Session:
        if isinstance(self.policy, TokenPolicy):
            return _RecordedSession(self, _TokenSession(_Tokens(self.policy, self), context))
        return _RecordedSession(self, None if self.policy is None else self.policy.start(context))


class _RecordedSession(Session):
    def __init__(self, recorded: RecordedPolicy, asked: Session | None) -> None:
        self._recorded = recorded
        self._asked = asked
        self._index = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        recorded, index = self._recorded, self._index
        turns = recorded.rollout.turns
        turn = turns[index] if index < len(turns) else None
        if self._asked is not None and not recorded.otherwise:
            await self._ask(self._asked, turn, self._recorded_prompt(messages), max_tokens)
        if turn is None or turn.answer is None:
            recorded.is_used_up = True
            raise ContextLengthError("the record has no further answer")
        self._index += 1
        return Completion(
            message=turn.answer,
            finish_reason=turn.finish_reason,
            tokens=turn.tokens,
            num_prompt_tokens=turn.num_prompt_tokens,
            num_completion_tokens=turn.num_completion_tokens,
        )

    def _recorded_prompt(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return what the record says this call saw; `messages` where it goes on from no turn."""
        rollout, index = self._recorded.rollout, self._index
        if index == len(rollout.turns):
            return rollout.messages if index else messages
        # Turns before this one were played, so what they go on from is an earlier one.
        parent = parent_of(rollout.turns, index)
        is_earlier = parent is None or 0 <= parent < index
        return prompt_messages(rollout.turns, index) if is_earlier else messages

    async def _ask(
        self, asked: Session, turn: Turn | None, messages: Sequence[Message], max_tokens: int
    ) -> None:
        """Compare the policy's answer with the record, which may be that it has none."""
        recorded = self._recorded
        kind = recorded.rollout.failure_kind
        is_repeatable = not isinstance(recorded.policy, TokenPolicy)
        has_failed = kind in BY_POLICY and is_repeatable
        if turn is None and not (kind is FailureKind.CONTEXT_LENGTH or has_failed):
            return
        recorded.num_asked += 1
        try:
            completion = await asked.complete(messages, max_tokens=max_tokens)
        except ContextLengthError:
            if turn is not None:
                recorded.otherwise.append(f"turn {self._index}: its context is full")
            return
        except Exception as e:  # the boundary to code that may be anybody's
            why = f"it failed: {type(e).__name__}: {e}" if turn else "its context has room"
            if turn is not None or not has_failed:
                recorded.otherwise.append(f"turn {self._index}: {why}")
            return
        if turn is None and has_failed:
            recorded.has_gone_on = True
        elif turn is None:
            recorded.otherwise.append(f"turn {self._index}: it goes on")
        elif completion.message != turn.answer:
            recorded.otherwise.append(f"turn {self._index}: it answers otherwise")
        elif completion.tokens is not None and _chain(completion.tokens) != _chain(turn.tokens):
            recorded.otherwise.append(f"turn {self._index}: its tokens are others")
        elif _counts(completion) != _counts(turn):
            recorded.otherwise.append(f"turn {self._index}: its prompt or its end is another")

    async def aclose(self) -> None:
        if self._asked is not None:
            await self._asked.aclose()


def _counts(call: Turn | Completion) -> tuple[int, int, str]:
    return call.num_prompt_tokens, call.num_completion_tokens, call.finish_reason


def _chain(tokens: TokenRecord | None) -> object:
    """Return tokens as values that compare, whatever sequences they are in."""
    if tokens is None:
        return None
    return (tokens.parent, tokens.num_shared, list(tokens.prompt_ids), list(tokens.completion_ids),
            tokens.branch, list(tokens.version_spans))  # fmt: skip


class _TokenSession(TokenSession):
    """A session of recorded tokens, which nothing was kept for."""

    async def aclose(self) -> None:
        return


class _Tokens(TokenPolicy):
    """Gives recorded tokens for sampled ones, in the chat format of another policy."""

    def __init__(self, policy: TokenPolicy, recorded: RecordedPolicy) -> None:
        self.name = policy.name
        self.renderer = policy.renderer
        self.tokenizer = policy.tokenizer
        self.max_context_tokens = policy.max_context_tokens
        self.vocab_size = policy.vocab_size
        self._turns = iter(recorded.rollout.turns)
        self._stop_ids = frozenset(policy.renderer.get_stop_token_ids())

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        turn = next(self._turns, None)
        tokens = TokenRecord() if turn is None or turn.tokens is None else turn.tokens
        ids = list(tokens.completion_ids)
        has_stopped = bool(ids) and ids[-1] in self._stop_ids
        is_whole = has_stopped or len(ids) == max_tokens
        return Generated(
            token_ids=ids if is_whole or turn is None else [],
            policy_logprobs=list(tokens.policy_logprobs),
            finish_reason="stop" if has_stopped else "length",
            version_spans=tuple(tokens.version_spans),
        )
