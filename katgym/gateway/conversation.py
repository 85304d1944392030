"""One session's conversations as a tree: what a new call goes on from, and why if from nothing.

Messages decide where a call belongs, token ids what it shares. A call whose messages begin with an
earlier call's messages and answer goes on from that answer. Anything else is a branch with a
reason. Calls may overlap: finding a place reads, committing appends.

Not here: making the prompt's ids (`answering/`); what is kept on disk (`katgym.rollout_store`).
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katgym.messages import Message
from katgym.policies.base import BranchReason
from katgym.rendering import num_common
from katgym.rollout_store.records import Node, NodeText

MAX_NODES = 4096
"""Answers of one session that can be gone on from; past it the ones used longest ago are forgotten
(they stay in the store), and a call that goes on from one becomes a branch."""


@dataclass(slots=True)
class _Known:
    """An answer that can be gone on from."""

    index: int
    parent: _Known | None
    num_shared: int
    prompt_ids: array[int]
    completion_ids: array[int]
    num_messages: int
    """Messages of its prompt."""
    has_reasoning: bool
    """Whether it, or an answer before it, holds thinking that a chat format may strip."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.num_shared + len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.completion_ids)

    def first_ids(self, num: int) -> list[int]:
        """Return the first `num` of its prompt's and answer's ids."""
        pieces: list[array[int]] = []
        known: _Known | None = self
        while known is not None:
            own = known.prompt_ids + known.completion_ids
            pieces.append(own[: max(num - known.num_shared, 0)])
            num = min(num, known.num_shared)
            known = known.parent
        ids: list[int] = []
        for piece in reversed(pieces):
            ids += piece
        return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call belongs in its session's tree."""

    chain: Sequence[bytes]
    """`chain[i]` stands for the tools and the first i messages."""
    known: _Known | None = None
    """The answer it goes on from, or the nearest one."""
    num_known_messages: int = 0
    """Messages that the answer and this call have in common, the answer itself included."""
    is_extension: bool = False
    """Whether it goes on from `known`'s answer."""
    is_same_prompt: bool = False
    """Whether it asks what `known` was asked."""
    reason: BranchReason | None = None
    """Why it does neither; None for the first call."""

    def prompt_ids(self) -> list[int]:
        """Return the whole prompt of `known`."""
        assert self.known is not None
        return self.known.first_ids(self.known.num_prompt_tokens)

    def completion_ids(self) -> list[int]:
        """Return the answer of `known`."""
        assert self.known is not None
        return self.known.completion_ids.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A prompt as what is new in it; see `Node`."""

    parent: int | None = None
    num_shared: int = 0
    branch: BranchReason | None = None


class Conversation:
    """The tree of one session."""

    def __init__(self) -> None:
        self.num_nodes = 0
        self._by_answer: OrderedDict[bytes, _Known] = OrderedDict()
        self._by_prompt: OrderedDict[bytes, _Known] = OrderedDict()
        self._by_prefix: OrderedDict[bytes, _Known] = OrderedDict()

    def place(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Place:
        """Return where a call with these messages belongs."""
        chain = hash_chain(messages, tools)
        return self._placed(chain, messages)

    def place_text(self, prompt: str | Sequence[int]) -> Place:
        """Return where a plain completion belongs: nothing but its own prompt is looked for."""
        text = prompt if isinstance(prompt, str) else json.dumps(list(prompt))
        start = _hash(b"completion", text)
        known = self._by_prompt.get(start)
        if known is not None:
            return Place(chain=[start], known=known, is_same_prompt=True)
        latest = next(reversed(self._by_prompt.values()), None)
        reason = None if latest is None else BranchReason.REWRITE
        return Place(chain=[start], known=latest, reason=reason)

    def _placed(self, chain: list[bytes], messages: Sequence[Message]) -> Place:
        last = len(messages)
        for num in range(last - 1, 0, -1):
            known = self._by_answer.get(chain[num])
            if known is not None:
                self._by_answer.move_to_end(chain[num])
                return Place(chain=chain, known=known, num_known_messages=num, is_extension=True)
        known = self._by_prompt.get(chain[last])
        if known is not None:
            return Place(chain=chain, known=known, num_known_messages=last, is_same_prompt=True)
        for num in range(last - 1, -1, -1):
            known = self._by_prefix.get(chain[num])
            if known is not None:
                reason = _reason(known, num, messages)
                return Place(chain=chain, known=known, num_known_messages=num, reason=reason)
        if not self.num_nodes:
            return Place(chain=chain)
        latest = next(reversed(self._by_prompt.values()), None)
        return Place(chain=chain, known=latest, reason=BranchReason.SUB_AGENT)

    def delta(self, place: Place, prompt_ids: Sequence[int]) -> Delta:
        """Return what a prompt shares with the answer it goes on from, or with the nearest one."""
        known = place.known
        if known is None:
            return Delta(branch=place.reason)
        whole = known.num_prompt_tokens if place.is_same_prompt else known.num_tokens
        num = num_common(known.first_ids(whole), prompt_ids)
        branch = place.reason
        if num < whole and (place.is_extension or place.is_same_prompt):
            stripped = BranchReason.THINK_STRIPPED
            branch = stripped if known.has_reasoning else BranchReason.RETOKENIZED
        if not num:
            return Delta(branch=branch)
        return Delta(parent=known.index, num_shared=num, branch=branch)

    def commit(self, place: Place, nodes: Sequence[Node], texts: Sequence[NodeText]) -> None:
        """Take up the answers of one call, which are in the store.

        The first one's parent is that of `delta`; the others share its prompt.
        """
        first: _Known | None = None
        for node, text in zip(nodes, texts, strict=True):
            parent = None if node.parent is None else first or place.known
            known = self._add(place.chain, node, text, parent)
            first = first or known

    def _add(
        self, chain: Sequence[bytes], node: Node, text: NodeText, parent: _Known | None
    ) -> _Known:
        answer = text.answer
        has_reasoning = bool(answer and answer.get("reasoning_content"))
        known = _Known(
            index=node.index,
            parent=parent,
            num_shared=node.num_shared,
            prompt_ids=array("i", node.prompt_ids),
            completion_ids=array("i", node.completion_ids),
            num_messages=len(chain) - 1,
            has_reasoning=has_reasoning or (parent is not None and parent.has_reasoning),
        )
        self.num_nodes = max(self.num_nodes, node.index + 1)
        # The first one with a prompt holds its ids; the others hold none.
        self._by_prompt.setdefault(chain[-1], known)
        self._by_prompt.move_to_end(chain[-1])
        for state in chain:
            self._by_prefix[state] = known
        if answer is not None:
            after = _hash(chain[-1], canonical(answer))
            self._by_answer[after] = self._by_prefix[after] = known
        self._forget()
        return known

    def _forget(self) -> None:
        for table, limit in (
            (self._by_answer, MAX_NODES),
            (self._by_prompt, MAX_NODES),
            (self._by_prefix, 4 * MAX_NODES),
        ):
            while len(table) > limit:
                table.popitem(last=False)

    @classmethod
    def restored(cls, nodes: Sequence[Node], texts: Sequence[NodeText]) -> Conversation:
        """Return the tree of what the store holds of a session."""
        conversation = cls()
        known: dict[int, _Known] = {}
        for node, text, prompt in zip(nodes, texts, prompts(nodes, texts), strict=True):
            parent = None if node.parent is None else known[node.parent]
            chain = hash_chain(prompt, text.tools)
            known[node.index] = conversation._add(chain, node, text, parent)
        return conversation


def prompts(nodes: Sequence[Node], texts: Sequence[NodeText]) -> list[list[Message]]:
    """Return the messages of each node's prompt."""
    found: list[list[Message]] = []
    whole: list[list[Message]] = []
    for node, text in zip(nodes, texts, strict=True):
        before = [] if node.parent is None else whole[node.parent]
        found.append([*before[: text.num_shared_messages], *text.messages])
        whole.append([*found[-1], text.answer] if text.answer is not None else found[-1])
    return found


def _reason(known: _Known, num_common_messages: int, messages: Sequence[Message]) -> BranchReason:
    """Return why a call that shares its first messages with `known` does not go on from it."""
    num_leading = next(
        (i for i, m in enumerate(messages) if m["role"] not in ("system",)), len(messages)
    )
    is_opening_alone = num_common_messages <= num_leading
    has_own_opening = num_common_messages < num_leading
    if has_own_opening or (is_opening_alone and known.num_messages <= num_leading + 1):
        return BranchReason.SUB_AGENT
    if len(messages) < known.num_messages:
        return BranchReason.COMPACTION
    return BranchReason.SUB_AGENT if is_opening_alone else BranchReason.REWRITE


def hash_chain(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return a hash for the tools alone, and one for each longer beginning of the messages."""
    chain = [_hash(b"chat", json.dumps(list(tools), sort_keys=True) if tools else "")]
    for message in messages:
        chain.append(_hash(chain[-1], canonical(message)))
    return chain


def canonical(message: Message) -> str:
    """Return what makes a message the same message when a client sends it again.

    Reasoning, call ids and outer blanks do not: clients drop, rename and trim them. Arguments are
    compared as JSON values where they are JSON.
    """
    calls = [
        (call["function"]["name"], _canonical_json(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    if not calls:
        return f"{message['role']}\0{message['content'].strip()}"
    return f"{message['role']}\0{message['content'].strip()}\0{calls!r}"


def _canonical_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _hash(before: bytes, text: str) -> bytes:
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()
