"""Random rollouts as the agent loop makes them: hypothesis strategies.

Not here: sessions of a gateway (`made_sessions.py`).
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from katgym import FailureKind, RolloutStatus, Sampling, ToolErrorKind, ToolResult, assistant, user
from katgym.environment.reward import Component, Reward, Trust
from katgym.play.rollout import Rollout, Turn
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.version_span import VersionSpan

T, C, F = RolloutStatus.TERMINATED, RolloutStatus.TRUNCATED, RolloutStatus.FAILED
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NAMES = st.text("abc/-. é", max_size=6)
# "\ud800" alone is no Unicode text; models and tools do produce it.
TEXTS = st.text(st.sampled_from("ab\n\u20ac\U0001f600\ud800"), max_size=8)
SECONDS = st.floats(0, 1e4)
SCORES = st.floats(-1e6, 1e6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | SCORES | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=2)
LOGPROBS = st.floats(-1e300, 0.0, allow_subnormal=True)
KINDS = st.none() | st.sampled_from(FailureKind)


@st.composite
def version_spans(draw: st.DrawFn, num: int) -> tuple[VersionSpan, ...]:
    """Draw the spans of `num` sampled tokens, at times none: not known."""
    cuts = draw(st.sets(st.integers(1, num - 1))) if num > 1 else set()
    edges = [0, *sorted(cuts), num] if num else [0, 0]
    versions = [draw(st.integers(-1, 2**40)) for _ in edges[1:]]
    found = zip(versions, edges, edges[1:], strict=False)
    made = tuple(VersionSpan(version=v, start=start, end=end) for v, start, end in found)
    return draw(st.sampled_from([made, ()]))


@st.composite
def token_records(draw: st.DrawFn, lengths: list[int | None]) -> TokenRecord:
    """Draw the tokens of the next turn; lengths: tokens of the turns before, None without any."""
    parents = [turn for turn, length in enumerate(lengths) if length is not None]
    parent = draw(st.none() | st.sampled_from(parents)) if parents else None
    num_shared = 0 if parent is None else draw(st.integers(0, lengths[parent] or 0))
    completion = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
    num = draw(st.sampled_from([0, len(completion)]))
    return TokenRecord(
        parent=parent,
        num_shared=num_shared,
        prompt_ids=draw(st.lists(st.integers(0, 2**31 - 1), max_size=4)),
        completion_ids=completion,
        policy_logprobs=draw(st.lists(LOGPROBS, min_size=num, max_size=num)),
        version_spans=draw(version_spans(len(completion))),
        branch=draw(st.none() | st.sampled_from(BranchReason)),
    )


@st.composite
def results_and_replies(draw: st.DrawFn) -> tuple[list[ToolResult], list[Any]]:
    """Draw a turn's tool results, and what the env said: their texts, others, or nothing."""
    results = [
        ToolResult(
            call_id=draw(st.sampled_from(["call_0", "call_1"])),
            name=draw(NAMES),
            content=draw(TEXTS),
            error=draw(st.none() | st.sampled_from(ToolErrorKind)),
            stage=draw(st.integers(0, 3)),
            called_s=draw(SECONDS),
            started_s=draw(SECONDS),
            ended_s=draw(SECONDS),
            num_bytes_omitted=draw(st.integers(0, 9)),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    replies: list[Any] = [result.to_message() for result in results if draw(st.booleans())]
    return results, replies + [user(text) for text in draw(st.lists(TEXTS, max_size=2))]


@st.composite
def rewards(draw: st.DrawFn) -> Reward:
    kind, reason = draw(KINDS), draw(TEXTS)
    if draw(st.booleans()):
        return Reward.invalid(kind or FailureKind.ENV_ERROR, reason)
    component = st.builds(Component, score=SCORES, weight=st.floats(0, 9), is_gate=st.booleans())
    return Reward(
        value=draw(SCORES),
        components=draw(st.dictionaries(NAMES, component, max_size=3)),
        failure_kind=kind,
        reason=reason,
        trust=draw(st.none() | st.sampled_from(Trust)),
        trust_reason=draw(TEXTS),
    )


@st.composite
def rollouts_of_loop(draw: st.DrawFn) -> Rollout:
    """Draw a rollout: any status, turns with and without tokens, any parent, any reward."""
    given: list[Any] = [user(text) for text in draw(st.lists(TEXTS, max_size=2))]
    turns: list[Turn] = []
    lengths: list[int | None] = []
    for _ in range(draw(st.integers(0, 4))):
        tokens = draw(st.none() | token_records(lengths))
        results, replies = draw(results_and_replies())
        turns.append(
            Turn(
                messages=given,
                num_shared_messages=draw(st.integers(0, 3)),
                answer=assistant(draw(TEXTS), [("f", {"x": 1})] if results else []),
                tools=draw(st.sampled_from([[], TOOLS])),
                model=draw(NAMES),
                finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
                tokens=tokens,
                num_prompt_tokens=draw(st.integers(0, 99)),
                num_completion_tokens=draw(st.integers(0, 99)),
                tool_results=results,
                started_s=draw(SECONDS),
                completed_s=draw(SECONDS),
                ended_s=draw(SECONDS),
            )
        )
        lengths.append(
            tokens and tokens.num_shared + len(tokens.prompt_ids) + len(tokens.completion_ids)
        )
        given = replies
    reward = draw(rewards())
    statuses = (T, C) if reward.is_valid else (F, RolloutStatus.CANCELLED)
    return Rollout(
        env_id=draw(NAMES), plugin_version=draw(NAMES), policy=draw(NAMES), task_id=draw(NAMES),
        task_sha256="0" * 64, split="train", seed=draw(st.none() | st.integers(0, 2**64)),
        attempt=draw(st.integers(0, 9)), episode_id="e",
        seat=draw(st.sampled_from(["player", "white"])),
        status=draw(st.sampled_from(statuses)),
        reward=reward, final_messages=given, turns=turns,
        sampling=Sampling(temperature=draw(st.floats(0, 2)), max_tokens=draw(st.integers(1, 9))),
        sampling_seed=draw(st.none() | st.integers(0, 2**64)), failure_kind=draw(KINDS),
        reason=draw(TEXTS), wall_s=draw(SECONDS), num_retries=draw(st.integers(0, 2)),
        env_kwargs=draw(OBJECTS), artifacts=draw(OBJECTS),
    )  # fmt: skip
