"""The record of one episode: turns, tokens, tool calls, reward, status.

Stored as deltas: a turn holds only the tokens its parent does not have, so a rollout's size grows
with its number of tokens, not with its square. Not here: how it is made (`agent_loop.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from katgym.failure import FailureKind, RolloutStatus
from katgym.messages import Message
from katgym.policies.base import BranchReason, Sampling, TokenRecord
from katgym.reward import Reward
from katgym.scheduler import ToolErrorKind, ToolResult
from katgym.version_span import VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the env's reply to it.

    `num_messages` is how many of the rollout's messages the model saw; the assistant message is
    the next one. Times are seconds since the rollout began.
    """

    num_messages: int
    finish_reason: str
    tokens: TokenRecord | None
    num_prompt_tokens: int
    num_completion_tokens: int
    tool_results: Sequence[ToolResult] = ()
    started_s: float = 0.0
    completed_s: float = 0.0
    """The completion was there; until `ended_s` the env worked."""
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One root-to-leaf token path: what a learner trains on.

    All lists have the same length. `loss_mask` is True on sampled tokens; `policy_logprobs` is
    0.0 elsewhere, and NaN on sampled tokens whose turn knows none. Entry t speaks of token t given
    the tokens before it.
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
    messages: Sequence[Message]
    turns: Sequence[Turn]
    tools: Sequence[Mapping[str, Any]]
    sampling: Sampling
    sampling_seed: int | None
    failure_kind: FailureKind | None = None
    reason: str = ""
    wall_s: float = 0.0
    num_retries: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    """What the env left besides messages and reward; see `Env.artifacts`."""

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
            parent = self._record(index).parent
            if parent is not None and self._extends(index, parent):
                continued.setdefault(parent, index)
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
            mask += [True] * len(record.completion_ids)
            logprobs += record.policy_logprobs or [math.nan] * len(record.completion_ids)
        return Trajectory(
            token_ids=ids, loss_mask=mask, policy_logprobs=logprobs, turns=tuple(path)
        )

    def _extends(self, turn: int, parent: int) -> bool:
        """Whether a turn's prompt starts with its parent's prompt and completion, all of it."""
        before = self._record(parent)
        num_before = before.num_shared + len(before.prompt_ids) + len(before.completion_ids)
        return self._record(turn).num_shared == num_before

    def _record(self, turn: int) -> TokenRecord:
        record = self.turns[turn].tokens
        if record is None:
            raise ValueError(
                f"turn {turn} of this rollout has no tokens: policy {self.policy!r} records none."
                " Use a token policy (hf:, vllm:, smollm2)."
            )
        return record

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: one line of `rollouts.jsonl`."""
        return {
            "env_id": self.env_id,
            "plugin_version": self.plugin_version,
            "policy": self.policy,
            "task_id": self.task_id,
            "task_sha256": self.task_sha256,
            "split": self.split,
            "attempt": self.attempt,
            "seed": self.seed,
            "sampling_seed": self.sampling_seed,
            "episode_id": self.episode_id,
            "seat": self.seat,
            "env_kwargs": dict(self.env_kwargs),
            "artifacts": dict(self.artifacts),
            "reward": self.reward.to_json(),
            "status": str(self.status),
            "failure_kind": None if self.failure_kind is None else str(self.failure_kind),
            "reason": self.reason,
            "num_turns": self.num_turns,
            "num_tool_calls": self.num_tool_calls,
            "num_parallel_calls": self.num_parallel_calls,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_completion_tokens": self.num_completion_tokens,
            "num_retries": self.num_retries,
            "wall_s": round(self.wall_s, 6),
            "sampling": asdict(self.sampling),
            "messages": list(self.messages),
            "tokens": {"turns": [_turn_to_json(turn) for turn in self.turns]},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rollout:
        """Return the rollout that `to_json` wrote; tool schemas are in `lock.json`, not here."""
        kind = data.get("failure_kind")
        return cls(
            env_id=data["env_id"],
            plugin_version=data["plugin_version"],
            policy=data["policy"],
            task_id=data["task_id"],
            task_sha256=data["task_sha256"],
            split=data["split"],
            seed=data["seed"],
            attempt=data["attempt"],
            episode_id=data["episode_id"],
            seat=data["seat"],
            status=RolloutStatus(data["status"]),
            reward=Reward.from_json(data["reward"]),
            messages=data["messages"],
            turns=[_turn_from_json(turn) for turn in data["tokens"]["turns"]],
            tools=(),
            sampling=Sampling(**data["sampling"]),
            sampling_seed=data["sampling_seed"],
            failure_kind=None if kind is None else FailureKind(kind),
            reason=data.get("reason", ""),
            wall_s=data["wall_s"],
            num_retries=data.get("num_retries", 0),
            env_kwargs=data.get("env_kwargs", {}),
            artifacts=data.get("artifacts", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """Rollouts of one task from one start: siblings that differ only in what was sampled."""

    rollouts: Sequence[Rollout]

    @property
    def rewards(self) -> list[float]:
        """Values of the valid rollouts."""
        return [r.reward.value for r in self.rollouts if r.reward.value is not None]


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    record = turn.tokens
    return {
        "num_messages": turn.num_messages,
        "finish_reason": turn.finish_reason,
        "num_prompt_tokens": turn.num_prompt_tokens,
        "num_completion_tokens": turn.num_completion_tokens,
        "started_s": round(turn.started_s, 6),
        "completed_s": round(turn.completed_s, 6),
        "ended_s": round(turn.ended_s, 6),
        "tool_results": [
            {
                "call_id": r.call_id,
                "name": r.name,
                "error": None if r.error is None else str(r.error),
                "stage": r.stage,
                "called_s": round(r.called_s, 6),
                "started_s": round(r.started_s, 6),
                "ended_s": round(r.ended_s, 6),
                "num_bytes_omitted": r.num_bytes_omitted,
            }
            for r in turn.tool_results
        ],
        "record": None
        if record is None
        else {
            "parent": record.parent,
            "num_shared": record.num_shared,
            "prompt_ids": list(record.prompt_ids),
            "completion_ids": list(record.completion_ids),
            "policy_logprobs": list(record.policy_logprobs),
            "version_spans": [asdict(span) for span in record.version_spans],
            "branch": None if record.branch is None else str(record.branch),
        },
    }


def _turn_from_json(data: Mapping[str, Any]) -> Turn:
    """Tool results come back without their text, which is in the rollout's messages."""
    record = data["record"]
    tokens = None
    if record is not None:
        branch = record["branch"]
        tokens = TokenRecord(
            **{
                **record,
                "version_spans": tuple(VersionSpan(**span) for span in record["version_spans"]),
                "branch": None if branch is None else BranchReason(branch),
            }
        )
    results = [
        ToolResult(
            **{
                **result,
                "error": None if result["error"] is None else ToolErrorKind(result["error"]),
                "content": "",
            }
        )
        for result in data["tool_results"]
    ]
    fields = {k: v for k, v in data.items() if k not in ("record", "tool_results")}
    return Turn(**fields, tokens=tokens, tool_results=results)
