"""The rollouts of a group as one tree: what siblings share is there once, where they part shows.

Each turn is a path of tokens (its prompt and its answer); equal beginnings are merged, as the
learner's trie does. Rollouts without tokens are merged by whole messages. Not here: where the
vertices are drawn (`tree_layout.py`); the trie that is trained on (`katgym_trainer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from katgym.play.rollout import Rollout, parent_of


class Cause(StrEnum):
    """What begins with a vertex."""

    PROMPT = "prompt"
    """Tokens that the policy was given."""
    SAMPLED = "sampled"
    """Tokens that the policy sampled."""
    BRANCH = "branch"
    """A prompt that does not extend the turn before it; `reason` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A place where an answer ends or paths part, with the symbols that lead to it.

    A symbol is a token id or, where rollouts have no tokens, the number of a message.
    """

    index: int
    parent: int | None
    """None for the root, which has no symbols."""
    start: int
    """Symbols from the root to where its own begin."""
    symbols: Sequence[int]
    turns: Sequence[tuple[int, int]]
    """(place of the rollout in its group, turn) of the answers that end here."""
    rollouts: Sequence[int]
    """Places of the rollouts that pass through it, in order."""
    depth: int
    """Row: 1 more than the turn whose answer ends here; of a fork, that of the answer above."""
    cause: Cause
    reason: str = ""
    """Of a branch."""

    @property
    def end(self) -> int:
        """Symbols from the root to here."""
        return self.start + len(self.symbols)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTree:
    """Vertices, a parent before its children; the root is the first."""

    vertices: Sequence[Vertex]
    ends: dict[tuple[int, int], int]
    """(rollout, turn) -> the vertex at which its answer ends."""
    num_prompts: dict[tuple[int, int], int]
    """(rollout, turn) -> symbols of its whole prompt."""
    is_of_tokens: bool
    messages: Sequence[str] = ()
    """Number of a message -> its text, where symbols are messages."""

    def children(self) -> list[list[int]]:
        """Return the children of every vertex."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for vertex in self.vertices:
            if vertex.parent is not None:
                found[vertex.parent].append(vertex.index)
        return found

    def path(self, rollout: int, turn: int) -> list[int]:
        """Return the vertices from the root's child to the end of a turn's answer."""
        found = []
        at: int | None = self.ends[rollout, turn]
        while at is not None and self.vertices[at].parent is not None:
            found.append(at)
            at = self.vertices[at].parent
        return found[::-1]


def group_tree(rollouts: Sequence[Rollout]) -> GroupTree:
    """Return the tree of a group's rollouts; by messages unless all that have turns have tokens."""
    with_turns = [rollout for rollout in rollouts if rollout.turns]
    is_of_tokens = bool(with_turns) and all(rollout.has_tokens for rollout in with_turns)
    builder = _Builder()
    messages: dict[str, int] = {}
    for place, rollout in enumerate(rollouts):
        turns = _token_turns(rollout) if is_of_tokens else _message_turns(rollout, messages)
        for number, turn in enumerate(turns):
            builder.add(place, number, turn)
    labels = []  # each message's text in one line, from what it is told apart by
    for key in messages:
        role, content, _, calls = json.loads(key)
        said = [f"{call['name']} {call['arguments']}" for call in calls]
        text = " ".join(" ".join([*said, str(content or "")]).split())
        labels.append(text[:160] or f"(empty {role} message)")
    return builder.tree(is_of_tokens=is_of_tokens, messages=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnSymbols:
    """A turn as symbols: what its prompt adds to the parent's, and its answer."""

    parent: int | None
    """Turn whose prompt and answer it extends; None: the prompt is whole."""
    prompt: Sequence[int]
    answer: Sequence[int]
    num_shared: int = 0
    reason: str = ""


def _token_turns(rollout: Rollout) -> Iterator[_TurnSymbols]:
    num_whole: list[int] = []
    for number, turn in enumerate(rollout.turns):
        record = turn.tokens
        assert record is not None
        parent = record.parent
        is_extended = parent is not None and record.num_shared == num_whole[parent]
        prompt = record.prompt_ids if is_extended else rollout.prompt_ids(number)
        num_whole.append(record.num_shared + len(record.prompt_ids) + len(record.completion_ids))
        yield _TurnSymbols(
            parent=parent if is_extended else None,
            prompt=prompt,
            answer=record.completion_ids,
            num_shared=record.num_shared,
            reason="" if record.branch is None else str(record.branch),
        )


def _message_turns(rollout: Rollout, known: dict[str, int]) -> Iterator[_TurnSymbols]:
    """Number messages by what they say; ids of calls, which may be random, are left out."""
    for number, turn in enumerate(rollout.turns):
        symbols = []
        for message in (*turn.messages, *([] if turn.answer is None else [turn.answer])):
            calls = [call["function"] for call in message.get("tool_calls", ())]
            said = (message["role"], message.get("content"), message.get("reasoning_content"))
            key = json.dumps([*said, calls], sort_keys=True, default=str)
            symbols.append(known.setdefault(key, len(known)))
        yield _TurnSymbols(
            parent=parent_of(rollout.turns, number),
            prompt=symbols[: len(turn.messages)],
            answer=symbols[len(turn.messages) :],
        )


@dataclass(slots=True, eq=False)
class _Node:
    """A vertex in the making."""

    parent: _Node | None
    symbols: list[int]
    end: int
    """As of a vertex."""
    children: dict[int, _Node] = field(default_factory=dict)
    turns: list[tuple[int, int]] = field(default_factory=list)
    cause: Cause = Cause.PROMPT
    reason: str = ""

    @property
    def start(self) -> int:
        return self.end - len(self.symbols)


class _Builder:
    """A radix tree that grows turn by turn."""

    def __init__(self) -> None:
        self.root = _Node(None, [], 0)
        self.ends: dict[tuple[int, int], _Node] = {}
        self.turns: dict[tuple[int, int], tuple[int, _TurnSymbols]] = {}

    def add(self, rollout: int, number: int, turn: _TurnSymbols) -> None:
        """Insert a turn behind the one it extends, or from the root."""
        at = self.root if turn.parent is None else self.ends[rollout, turn.parent]
        num_before = at.end
        symbols, place = [*turn.prompt, *turn.answer], 0
        while place < len(symbols):
            child = at.children.get(symbols[place])
            if child is None:
                end = num_before + len(symbols)
                child = at.children[symbols[place]] = _Node(at, symbols[place:], end)
            common = _num_common(child.symbols, symbols, place)
            if common < len(child.symbols):
                # They part within it: a new node holds what they share, it keeps its end.
                upper = _Node(at, child.symbols[:common], at.end + common)
                at.children[symbols[place]] = upper
                child.parent, child.symbols = upper, child.symbols[common:]
                upper.children[child.symbols[0]] = child
                child = upper
            at = child
            place += common
        at.turns.append((rollout, number))
        self.ends[rollout, number] = at
        self.turns[rollout, number] = (num_before + len(turn.prompt), turn)

    def tree(self, *, is_of_tokens: bool, messages: Sequence[str]) -> GroupTree:
        """Return what has grown."""
        for (rollout, number), (num_prompt, turn) in self.turns.items():
            self._mark(self.ends[rollout, number], num_prompt, turn)
        order = [self.root]
        for node in order:  # grows while it is gone through: parents before children
            order += node.children.values()
        index = {id(node): place for place, node in enumerate(order)}
        through: list[set[int]] = [{r for r, _ in node.turns} for node in order]
        for place in range(len(order) - 1, 0, -1):
            through[index[id(order[place].parent)]] |= through[place]
        vertices: list[Vertex] = []
        for place, node in enumerate(order):
            above, depth = None, 0
            if node.parent is not None:
                above = index[id(node.parent)]
                own = min((turn + 1 for _, turn in node.turns), default=0)
                depth = max(own, vertices[above].depth + bool(node.turns))
            vertices.append(
                Vertex(
                    index=place, parent=above, start=node.start, symbols=node.symbols,
                    turns=node.turns, rollouts=sorted(through[place]), depth=depth,
                    cause=node.cause, reason=node.reason,
                )
            )  # fmt: skip
        ends = {key: index[id(node)] for key, node in self.ends.items()}
        return GroupTree(
            vertices=vertices,
            ends=ends,
            num_prompts={key: num_prompt for key, (num_prompt, _) in self.turns.items()},
            is_of_tokens=is_of_tokens,
            messages=messages,
        )

    def _mark(self, end: _Node, num_prompt: int, turn: _TurnSymbols) -> None:
        """Say of the vertices on a turn's path what begins with them."""
        node = end
        branch: _Node | None = None
        while node.parent is not None:
            if node.start >= num_prompt and node.cause is not Cause.BRANCH:
                node.cause = Cause.SAMPLED
            if turn.reason and node.start >= turn.num_shared:
                branch = node
            node = node.parent
        if branch is not None and branch.cause is not Cause.SAMPLED:
            branch.cause, branch.reason = Cause.BRANCH, turn.reason


def _num_common(one: Sequence[int], other: Sequence[int], start: int) -> int:
    """Return how many symbols `one` and `other[start:]` have in common from their beginnings."""
    num = min(len(one), len(other) - start)
    if list(one[:num]) == list(other[start : start + num]):
        return num
    return next(i for i in range(num) if one[i] != other[start + i])
