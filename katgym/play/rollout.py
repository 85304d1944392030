"""The record of one episode: turns, tokens, tool calls, reward, status.

Agent loop and gateway write it, stores keep it, evaluation, viewer and learner read it. Stored as
deltas: a turn holds only the tokens and messages its parent does not have, so a rollout's size
grows with its number of tokens, not with its square. Not here: how it is made (`agent_loop.py`,
`katgym.gateway`), files (`katgym.rollout_store`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import msgspec

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import Message
from katgym.environment.reward import Reward, Success
from katgym.environment.scheduler import ToolResult
from katgym.errors import UsageError, unknown_name
from katgym.policies.base import Sampling, TokenRecord
from katgym.policies.sampling_constraint import find_constraint

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_COUNTS = (
    *("num_turns", "num_tool_calls", "num_parallel_calls"),
    *("num_prompt_tokens", "num_completion_tokens"),
)


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One model call, its answer and the env's reply: a node of the rollout's tree.

    It is a delta to an earlier turn, its parent (`parent_of`): the messages of its prompt are the
    first `num_shared_messages` of the parent's prompt followed by its answer, and then `messages`;
    what its tokens share is in `tokens`. Times are seconds since the rollout began.

    Example:
        Turn(messages=[user("2 + 2?")], answer=assistant("4"), num_prompt_tokens=5,
             num_completion_tokens=2, tokens=TokenRecord(prompt_ids=[1, 7, 8, 7, 2],
             completion_ids=[9, 3], policy_logprobs=[-0.1, -0.01]))

    A struct, which `msgspec.structs.replace` changes: a call of the agent loop makes one, and a
    dataclass of as many fields takes six times as long to make.
    """

    messages: Sequence[Message] = ()
    num_shared_messages: int = 0
    answer: Message | None = None
    """None: the call has no answer in words."""
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI function tools that were offered; a store keeps them once however often they are."""
    tokens: TokenRecord | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    finish_reason: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    tool_results: Sequence[ToolResult] = ()
    call_id: str = ""
    """Of a gateway: unique among model calls; the answers of one call (`n` > 1) share it."""
    choice: int = 0
    """Which of the call's answers."""
    model: str = ""
    route: str = ""
    """Where it came through: `katgym/agent-loop`, or a gateway's API, as in `openai/chat`."""
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What a gateway's call asked for: `temperature`, `top_p`, `max_tokens`, `seed`, ...; empty
    where the rollout's holds for all of its turns."""
    upstream: str = ""
    started_s: float = 0.0
    """The request was there."""
    sent_s: float = 0.0
    """It went to the model server."""
    completed_s: float = 0.0
    """The completion was there; until `ended_s` the env worked."""
    ended_s: float = 0.0

    @property
    def constraint(self) -> str:
        """What the answer was held to while it was sampled, its kind and a hash; "" for nothing.

        As `json_schema:1f0c3a9b2d4e`; see `find_constraint`. Its log-probabilities are not those of
        the model alone: what was ruled out took no part in them.
        """
        return find_constraint(self.sampling, self.tools)


def parent_of(turns: Sequence[Turn], index: int) -> int | None:
    """Return the turn that a turn is a delta to, None for a root.

    Its tokens say which; a turn without tokens goes on from the one before it.
    """
    tokens = turns[index].tokens
    if tokens is not None:
        return tokens.parent
    return index - 1 if index else None


def prompt_messages(turns: Sequence[Turn], index: int) -> list[Message]:
    """Return the messages that model call `index` saw."""
    return [message for message, _ in prompt_sources(turns, index)]


def prompt_sources(turns: Sequence[Turn], index: int) -> list[tuple[Message, int | None]]:
    """Return the messages that model call `index` saw, each with the turn whose answer it is."""
    chain: list[int] = []
    place: int | None = index
    while place is not None:
        chain.append(place)
        place = parent_of(turns, place)
    messages: list[tuple[Message, int | None]] = []
    for place in reversed(chain):
        turn = turns[place]
        del messages[turn.num_shared_messages :]
        messages += ((message, None) for message in turn.messages)
        if place != index and turn.answer is not None:
            messages.append((turn.answer, place))
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One root-to-leaf token path: what a learner trains on.

    All lists have the same length. `loss_mask` is True on sampled tokens, but for those of turns
    with a `constraint`: they are context, as if others had written them. `policy_logprobs` is 0.0
    elsewhere, and NaN on sampled tokens whose turn knows none. Entry t speaks of token t given the
    tokens before it.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    policy_logprobs: list[float]
    turns: tuple[int, ...]
    """Indices of the turns on the path, root first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode's whole record.

    Example:
        rollout.reward.value, rollout.reward.is_valid, rollout.status, rollout.messages[-1]
    """

    env_id: str
    plugin_version: str
    policy: str
    task_id: str
    task_sha256: str
    split: str
    seed: int | None
    attempt: int
    episode_id: str
    seat: str
    status: RolloutStatus
    reward: Reward
    success: Success = field(default_factory=Success)
    """What the env calls a success: those who read the record need not have the env."""
    turns: Sequence[Turn] = ()
    final_messages: Sequence[Message] = ()
    """Those after the last answer, which no model saw; all of them without a turn."""
    sampling: Sampling | None = None
    """None: each call came with its own (`Turn.sampling`), as in a gateway."""
    sampling_seed: int | None = None
    failure_kind: FailureKind | None = None
    reason: str = ""
    wall_s: float = 0.0
    num_retries: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    """What the env left besides messages and reward; see `Env.artifacts`."""

    @property
    def messages(self) -> list[Message]:
        """The conversation: what the last call saw, its answer, and what came after.

        Of a rollout with branches `conversation` has the others.
        """
        before = self.conversation(len(self.turns) - 1) if self.turns else []
        return [*before, *self.final_messages]

    @property
    def is_success(self) -> bool:
        """Whether the reward is valid and what the env calls a success."""
        return self.success.is_met(self.reward)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The first tools that were offered."""
        return next((turn.tools for turn in self.turns if turn.tools), ())

    def conversation(self, turn: int) -> list[Message]:
        """Return the messages that model call `turn` saw, then its answer."""
        answer = self.turns[turn].answer
        return prompt_messages(self.turns, turn) + ([] if answer is None else [answer])

    @property
    def num_turns(self) -> int:
        """Model calls."""
        return len(self.turns)

    @property
    def tool_results(self) -> list[ToolResult]:
        """Every call's result, in call order over all turns."""
        return [result for turn in self.turns for result in turn.tool_results]

    @property
    def num_tool_calls(self) -> int:
        """Tool calls, refused ones included."""
        return sum(len(turn.tool_results) for turn in self.turns)

    @property
    def num_parallel_calls(self) -> int:
        """Tool calls that ran in a stage of two or more."""
        count = 0
        for turn in self.turns:
            stages = [result.stage for result in turn.tool_results]
            count += sum(stages.count(stage) > 1 for stage in stages)
        return count

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens read, summed over model calls."""
        return sum(turn.num_prompt_tokens for turn in self.turns)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens sampled, summed over model calls."""
        return sum(turn.num_completion_tokens for turn in self.turns)

    @property
    def has_tokens(self) -> bool:
        """Whether every turn recorded its tokens."""
        return bool(self.turns) and all(turn.tokens is not None for turn in self.turns)

    def prompt_ids(self, turn: int) -> list[int]:
        """Return the whole prompt of model call `turn`; `ValueError` without tokens."""
        chain = [self._record(turn)]
        while (parent := chain[-1].parent) is not None:
            chain.append(self._record(parent))
        ids: list[int] = []
        for record in reversed(chain):
            del ids[record.num_shared :]
            ids += record.prompt_ids
            ids += record.completion_ids
        return ids[: len(ids) - len(chain[0].completion_ids)]

    def trajectories(self) -> list[Trajectory]:
        """Return one append-only token path per leaf, every branch kept.

        The first turn that extends its parent's prompt and completion exactly continues that path;
        any other starts a new path, which repeats the shared tokens with a False `loss_mask`, as
        those are trained on the path they were sampled on. Ordered by the paths' last turns.
        """
        continued: dict[int, int] = {}  # turn -> the one that goes on from it
        for index in range(len(self.turns)):
            record = self._record(index)
            if record.parent is not None:
                # It extends its parent when it starts with all of its prompt and completion.
                before = self._record(record.parent)
                num_before = before.num_shared + len(before.prompt_ids) + len(before.completion_ids)
                if record.num_shared == num_before:
                    continued.setdefault(record.parent, index)
        paths = []
        for start in sorted(set(range(len(self.turns))) - set(continued.values())):
            path = [start]
            while path[-1] in continued:
                path.append(continued[path[-1]])
            paths.append(path)
        return [self._trajectory(path) for path in sorted(paths, key=lambda path: path[-1])]

    def _trajectory(self, path: Sequence[int]) -> Trajectory:
        ids: list[int] = self.prompt_ids(path[0])
        mask = [False] * len(ids)
        logprobs = [0.0] * len(ids)
        for turn in path:
            record = self._record(turn)
            if turn != path[0]:
                ids += record.prompt_ids
                mask += [False] * len(record.prompt_ids)
                logprobs += [0.0] * len(record.prompt_ids)
            ids += record.completion_ids
            num_sampled = len(record.completion_ids)
            is_free = not self.turns[turn].constraint
            mask += [is_free] * num_sampled
            known = record.policy_logprobs or [math.nan] * num_sampled
            logprobs += known if is_free else [0.0] * num_sampled
        return Trajectory(
            token_ids=ids, loss_mask=mask, policy_logprobs=logprobs, turns=tuple(path)
        )

    def _record(self, turn: int) -> TokenRecord:
        record = self.turns[turn].tokens
        if record is None:
            raise ValueError(
                f"turn {turn} of this rollout has no tokens: policy {self.policy!r} records none."
                " Use a token policy (hf:, vllm:, smollm2)."
            )
        return record

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with its counts (`num_turns`, ...) for whoever reads them.

        A turn's `tools` are None where they are those of the turn before; tokens have no `routes`
        where none were told.
        """
        data: dict[str, Any] = msgspec.to_builtins(self)
        for turn in data["turns"]:
            if turn["tokens"] and not turn["tokens"]["routes"]:
                del turn["tokens"]["routes"]
        for index in range(1, len(self.turns)):
            if self.turns[index].tools == self.turns[index - 1].tools:
                data["turns"][index]["tools"] = None
        return {**data, **{name: getattr(self, name) for name in _COUNTS}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rollout:
        """Return the rollout that `to_json` wrote; `UsageError` says what does not fit.

        Keys of messages that `Message` does not have are left out.
        """
        try:
            turns = [dict(turn) for turn in data["turns"]]
            for before, turn in itertools.pairwise(turns):
                if turn["tools"] is None:
                    turn["tools"] = before["tools"]
            _check_names(data, JSON_FIELDS)
            _check_names(data["sampling"] or {}, _names(Sampling))
            for turn in turns:
                _check_names(turn, Turn.__struct_fields__)
                _check_names(turn["tokens"] or {}, TokenRecord.__struct_fields__)
            return msgspec.convert({**data, "turns": turns}, cls)
        except (KeyError, TypeError, ValueError) as e:
            why = f"it has no {e}" if isinstance(e, KeyError) else e
            raise UsageError(f"not a rollout as this katgym writes them: {why}") from e


def _names(form: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(form))


def _check_names(given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise `UsageError` for a key that nothing would read."""
    for name in given:
        if name not in known:
            raise UsageError(unknown_name("field", name, known))


JSON_FIELDS = (*_names(Rollout), *_COUNTS)
"""Keys of `Rollout.to_json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """Rollouts of one task from one start: siblings that differ only in what was sampled."""

    rollouts: Sequence[Rollout]

    @property
    def rewards(self) -> list[float]:
        """Values of the valid rollouts."""
        return [r.reward.value for r in self.rollouts if r.reward.value is not None]

    @property
    def is_solved(self) -> bool:
        """Whether all valid rollouts succeeded, and there is one."""
        valid = [rollout for rollout in self.rollouts if rollout.reward.is_valid]
        return bool(valid) and all(rollout.is_success for rollout in valid)
