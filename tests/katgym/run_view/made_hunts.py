"""Rollouts put together by hand: groups that share tokens, branch, and call tools in parallel.

Agents look for a treasure in a house; what they say is drawn by a seed from a few texts, so that
siblings begin alike. Not here: runs of them (`made_runs.py`); rollouts that were played.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plain_rollout import plain_rollout

from katgym import (
    Component,
    FailureKind,
    Message,
    Reward,
    Rollout,
    RolloutStatus,
    TokenRecord,
    ToolErrorKind,
    ToolResult,
    Turn,
    user,
)
from katgym.policies.base import BranchReason
from katgym.policies.version_span import VersionSpan, one_span

ENV_ID = "katgym/TreasureHunt-v1"
ROOMS = {
    "library": ("library rug", "library shelf", "library cabinet"),
    "kitchen": ("kitchen table", "kitchen basket", "kitchen bench"),
    "attic": ("attic trunk", "attic window"),
}
THOUGHTS = (
    "I look at all places of the library together, as they cost one turn.",
    "I look at all places of the kitchen together, as they cost one turn.",
    "I look at the places one after another and begin with the library rug.",
    "The chests first: one of them may be open.",
)
ENDINGS = (
    "The two owl notes leave the black chest made of maple, so I open chest 2.",
    "The two owl notes leave the green chest made of pine, so I open chest 3.",
    "I cannot tell yet which note is true, but the turns run out, so I open chest 5.",
)
Encode = Callable[[str], list[int]]


class Words:
    """A tokenizer that grows: every word with the space before it is a token."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the text's ids; new words get new ones."""
        words = re.findall(r"<\|\w+\|>| ?\w+|\s|[^\w\s]", text)
        return [self.ids.setdefault(word, len(self.ids)) for word in words]

    def write(self, folder: Path) -> None:
        """Write a `tokenizer.json` that knows the words so far."""
        folder.mkdir(parents=True, exist_ok=True)
        model = {"type": "WordLevel", "vocab": self.ids, "unk_token": "<|im_start|>"}
        content = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": model,
        }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(content))


class Episode:
    """A rollout in the making: messages, turns and their tokens."""

    def __init__(self, encode: Encode, rng: random.Random, version: int) -> None:
        self.encode, self.rng, self.version = encode, rng, version
        self.num_messages = 0
        self.turns: list[Turn] = []
        self.wholes: list[list[int]] = []
        self.new: list[Message] = []
        self.clock_s = 0.0
        self.ran_s = 5000.0

    def tell(self, *messages: Message) -> None:
        """Add messages that the next answer is to."""
        self.new += messages

    def answer(
        self,
        content: str,
        calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
        results: Sequence[tuple[str, ToolErrorKind | None, float, int]] = (),
        branch: BranchReason | None = None,
        shared: int = 0,
    ) -> None:
        """Add a turn; results are (text, error, seconds, stage) of the calls.

        branch: the turn shares only the first `shared` tokens of the one before.
        """
        number = len(self.turns)
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{i}", "type": "function",
                    "function": {"name": name, "arguments": json.dumps(dict(arguments))},
                }
                for i, (name, arguments) in enumerate(calls)
            ]  # fmt: skip
        given = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in self.new)
        prompt = self.encode(f"{given}<|im_start|>assistant\n")
        said = "".join(
            f"\n<tool_call>{name} {json.dumps(dict(a))}</tool_call>" for name, a in calls
        )
        answer = self.encode(f"{content}{said}<|im_end|>")
        whole = self.wholes[-1] if self.wholes else []
        num_shared = shared if branch else len(whole)
        num_prompt = num_shared + len(prompt)
        self.wholes.append([*whole[:num_shared], *prompt, *answer])
        began, seconds = self.clock_s, 0.011 * len(answer)
        self.clock_s += seconds
        ran = self._results(calls, results)
        self.turns.append(
            Turn(
                messages=self.new,
                num_shared_messages=self.num_messages,
                answer=message,
                finish_reason="tool_calls" if calls else "stop",
                tokens=TokenRecord(
                    parent=number - 1 if number else None, num_shared=num_shared, prompt_ids=prompt,
                    completion_ids=answer, policy_logprobs=self._logprobs(answer),
                    version_spans=self._spans(number, len(answer)), branch=branch,
                ),
                num_prompt_tokens=num_prompt,
                num_completion_tokens=len(answer),
                tool_results=ran,
                started_s=began,
                completed_s=began + seconds,
                ended_s=self.clock_s,
            )
        )  # fmt: skip
        self.num_messages += len(self.new) + 1
        self.new = [result.to_message() for result in ran]

    def _spans(self, number: int, num_tokens: int) -> tuple[VersionSpan, ...]:
        """Return whose tokens they are: new weights come after two tokens of the second answer."""
        if number != 1:
            return one_span(self.version + (number > 1), num_tokens)
        return (
            VersionSpan(version=self.version, start=0, end=2),
            VersionSpan(version=self.version + 1, start=2, end=num_tokens),
        )

    def _results(
        self,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        results: Sequence[tuple[str, ToolErrorKind | None, float, int]],
    ) -> list[ToolResult]:
        """Return results whose times are those of stages that follow each other."""
        found, begins, called = [], {}, self.ran_s
        for (name, _), (text, error, seconds, stage) in zip(calls, results, strict=True):
            begin = begins.setdefault(stage, self.ran_s) + 0.001 + 0.002 * self.rng.random()
            found.append(
                ToolResult(
                    call_id=f"call_{len(found)}", name=name, content=text, error=error, stage=stage,
                    called_s=called, started_s=begin, ended_s=begin + seconds,
                )
            )  # fmt: skip
            self.ran_s = max(self.ran_s, begin + seconds)
        self.clock_s += self.ran_s - called
        return found

    def _logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return log-probs like a model's: most tokens are certain, some are not."""
        return [
            -self.rng.expovariate(0.6) if self.rng.random() < 0.22 else -0.06 * self.rng.random()
            for _ in ids
        ]


def made_rollout(
    encode: Encode,
    *,
    task: int,
    attempt: int,
    skill: float = 0.5,
    version: int = 0,
    seed: int = 0,
    note: str = "",
) -> Rollout:
    """Return a hunt of two to four turns; attempt 2 is compacted, 5 of every third task breaks.

    note: what stands in every place besides.
    """
    rng = random.Random(f"{seed} {task} {attempt} {version}")
    episode = Episode(encode, rng, version)
    is_good = rng.random() < skill
    episode.tell({"role": "system", "content": "You hunt for treasures in houses. Be brief."})
    episode.tell(user(_opening(task)))
    num_shared = len(encode(f"<|im_start|>system\n{episode.new[0]['content']}<|im_end|>\n"))
    choice = 0 if is_good else rng.choice((0, 1, 1, 2, 3))
    _look(
        episode, THOUGHTS[choice], "library" if choice in (0, 3) else "kitchen", choice == 2, note
    )
    if choice != 3 or is_good:
        _look(episode, THOUGHTS[1 if choice == 0 else 0], "attic", False, note)
    if attempt == 2:
        episode.new = [user("So far: an owl note in the library says that the wood is maple.")]
        _look(episode, THOUGHTS[1], "kitchen", False, note, BranchReason.COMPACTION, num_shared)
    ending = ENDINGS[0] if is_good else rng.choice(ENDINGS[1:])
    number = int(re.findall(r"\d", ending)[-1])
    episode.answer(
        ending, [("open_chest", {"number": number})],
        [("The treasure!" if is_good else "The chest is empty.", None, 0.004, 0)],
    )  # fmt: skip
    return _rollout(
        episode, task, attempt, is_good=is_good, is_broken=attempt == 5 and task % 3 == 0
    )


def _opening(task: int) -> str:
    places = "\n".join(f"- {room}: {', '.join(places)}" for room, places in ROOMS.items())
    return (
        f"Somewhere in house {task} a treasure is hidden in one of five chests. Find out which"
        " chest, then open it. You may open one chest only. Notes with the owl seal are true.\n\n"
        f"Places:\n{places}\n\ninspect(place) shows what is in a place. Several calls in a message"
        " take one turn together."
    )


def _look(
    episode: Episode,
    thought: str,
    room: str,
    is_single: bool,
    note: str,
    branch: BranchReason | None = None,
    shared: int = 0,
) -> None:
    """Add a turn that inspects a room's places, all in one stage or the first alone."""
    places = ROOMS[room][:1] if is_single else (*ROOMS[room], f"{room} ceiling")
    seeds = random.Random(room)
    results: list[tuple[str, ToolErrorKind | None, float, int]] = [
        (f"A note with the owl seal: it is {seeds.choice(['maple', 'black', 'not pine'])}.{note}",
         None, 0.04 + 0.2 * seeds.random(), 0)
        for _ in places
    ]  # fmt: skip
    if not is_single:
        results[-1] = ("There is no such place.", ToolErrorKind.TOOL_ERROR, 0.01, 0)
    calls: list[tuple[str, Mapping[str, Any]]] = [("inspect", {"place": p}) for p in places]
    if room == "library" and not is_single:
        calls.append(("write_note", {"text": "looked at the library"}))
        results.append(("noted", None, 0.03, 1))
    episode.answer(thought, calls, results, branch, shared)


def _rollout(
    episode: Episode, task: int, attempt: int, *, is_good: bool, is_broken: bool
) -> Rollout:
    read = round(0.25 * len(episode.turns), 2)
    components = {
        "correct": Component(score=float(is_good)),
        "facts_read": Component(score=read, weight=0.0),
    }
    reward = Reward(value=float(is_good), components=components)
    kind = None
    if is_broken:
        kind = FailureKind.SANDBOX_ERROR
        reward = Reward.invalid(kind, "the sandbox's container was gone")
    return plain_rollout(
        env_id=ENV_ID, plugin_version="0.1.0", task_id=f"L3-train-{task:06d}", seed=task,
        attempt=attempt, episode_id=f"episode-{task}-{attempt}-{episode.version}",
        status=RolloutStatus.FAILED if is_broken else RolloutStatus.TERMINATED,
        reward=reward, turns=episode.turns, final_messages=episode.new,
        sampling_seed=attempt, failure_kind=kind, reason=reward.reason, wall_s=episode.clock_s,
    )  # fmt: skip


def plain_end(episode: Episode, *, task: int, attempt: int) -> Rollout:
    """Return the rollout of an episode that went well."""
    return _rollout(episode, task, attempt, is_good=True, is_broken=False)


def made_group(encode: Encode, task: int, *, group_size: int = 6, **more: Any) -> list[Rollout]:
    """Return the rollouts of one task."""
    return [made_rollout(encode, task=task, attempt=i, **more) for i in range(group_size)]
