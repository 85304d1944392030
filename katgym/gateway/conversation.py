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
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katgym.environment.messages import Message, ToolCallMessage, arguments_of
from katgym.play.rollout import Turn, parent_of, prompt_messages
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.expert_routes import first_told
from katgym.policies.rendering.chat_format import num_common

MAX_TURNS = 4096
"""Answers of one session that can be gone on from; past it the ones used longest ago are forgotten
(they stay in the store), and a call that goes on from one becomes a branch."""
NUM_QUOTABLE = 4
"""Latest answers that a compacted conversation may quote: its summary is one of them."""
MIN_QUOTED = 40
"""Characters of a line that two texts do not share by chance."""
_START = b"messages"


@dataclass(slots=True)
class KnownAnswer:
    """An answer that can be gone on from."""

    index: int
    parent: KnownAnswer | None
    num_shared: int
    prompt_ids: array[int]
    completion_ids: array[int]
    num_messages: int
    """Messages of its prompt."""
    has_reasoning: bool
    """Whether it, or an answer before it, holds thinking that a chat format may strip."""
    has_routes: bool
    """Whether its server told the experts of its tokens."""
    is_waiting: bool
    """Whether it calls tools and nothing has gone on from it yet."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.num_shared + len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.completion_ids)

    def first_ids(self, num: int) -> array[int]:
        """Return the first `num` of its prompt's and answer's ids."""
        pieces: list[array[int]] = []
        known: KnownAnswer | None = self
        while known is not None:
            own = known.prompt_ids + known.completion_ids
            pieces.append(own[: max(num - known.num_shared, 0)])
            num = min(num, known.num_shared)
            known = known.parent
        ids = array("i")
        for piece in reversed(pieces):
            ids += piece
        return ids


@dataclass(slots=True, kw_only=True)
class CallPlace:
    """Where a call belongs in its session's tree: its parent, and what it shares with it."""

    chain: Sequence[bytes]
    """`chain[0]` stands for the tools, `chain[i]` for the first i messages."""
    parent: KnownAnswer | None = None
    """The answer it goes on from, or the nearest one."""
    num_shared_messages: int = 0
    """Messages that the parent and this call have in common, the parent's answer included."""
    num_shared: int = 0
    """Tokens that its prompt shares with the parent; 0 until `share_tokens` has compared them, but
    where the prompt was made of the parent's tokens."""
    is_extension: bool = False
    """Whether it goes on from the parent's answer."""
    is_same_prompt: bool = False
    """Whether it asks what the parent was asked."""
    branch: BranchReason | None = None
    """Why it does neither; None for the first call."""

    def prompt_ids(self) -> array[int]:
        """Return the whole prompt of the parent."""
        assert self.parent is not None
        return self.parent.first_ids(self.parent.num_prompt_tokens)

    def completion_ids(self) -> array[int]:
        """Return the answer of the parent."""
        assert self.parent is not None
        return self.parent.completion_ids

    def share_tokens(self, prompt_ids: Sequence[int]) -> None:
        """Compare the call's prompt, which is known by now, with the parent's tokens.

        A prompt that was rendered otherwise than it was sampled is a branch; a parent that it has
        no token in common with is none.
        """
        parent = self.parent
        if parent is None or self.num_shared:
            return
        whole = parent.num_prompt_tokens if self.is_same_prompt else parent.num_tokens
        self.num_shared = num_common(parent.first_ids(whole), as_ids(prompt_ids))
        if self.num_shared < whole and (self.is_extension or self.is_same_prompt):
            stripped = BranchReason.THINK_STRIPPED
            self.branch = stripped if parent.has_reasoning else BranchReason.RETOKENIZED
        if not self.num_shared:
            self.parent, self.num_shared_messages = None, 0

    def routes_start(self, prompt_ids: Sequence[int]) -> int:
        """Return how many tokens of the call's prompt had their experts told with the parent."""
        parent = self.parent
        if parent is None or not parent.has_routes:
            return 0
        return first_told(num_common(parent.first_ids(parent.num_tokens), as_ids(prompt_ids)))


class Conversation:
    """The tree of one session."""

    def __init__(self) -> None:
        self.num_turns = 0
        self._has_main = False
        """Whether an agent's own conversation has begun: one with tools, or that went on."""
        self._by_answer: OrderedDict[bytes, KnownAnswer] = OrderedDict()
        self._by_prompt: OrderedDict[bytes, KnownAnswer] = OrderedDict()
        self._by_prefix: OrderedDict[bytes, KnownAnswer] = OrderedDict()
        self._by_messages: OrderedDict[bytes, KnownAnswer] = OrderedDict()
        """By a whole prompt, and by one with its answer, whatever the tools were."""
        self._latest_texts: deque[str] = deque(maxlen=NUM_QUOTABLE)
        """Of answers without calls; one may be a summary that a later prompt quotes."""

    def place(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        chain: Sequence[bytes] = (),
    ) -> CallPlace:
        """Return where a call with these messages belongs; chain: theirs, where it is known."""
        chain = chain or hash_chain(messages, tools)
        last = len(messages)
        # The longest beginning that ends with a recorded answer: the call goes on from it.
        for num in range(last - 1, 0, -1):
            known = self._by_answer.get(_key(chain, num))
            if known is not None:
                self._by_answer.move_to_end(_key(chain, num))
                return CallPlace(
                    chain=chain, parent=known, num_shared_messages=num, is_extension=True
                )
        known = self._by_prompt.get(_key(chain, last))
        if known is not None:
            return CallPlace(
                chain=chain, parent=known, num_shared_messages=last, is_same_prompt=True
            )
        # A branch: off the call with the longest common beginning, else off the latest one.
        near = (num for num in range(last - 1, -1, -1) if _key(chain, num) in self._by_prefix)
        num_near, num_leading = next(near, -1), _num_leading(messages)
        # The same conversation with other tools, or with none, is nobody's sub-agent.
        for num in range(last, max(num_near, num_leading), -1):
            known = self._by_messages.get(chain[num])
            if known is not None and any(m["role"] == "assistant" for m in messages[:num]):
                reason = BranchReason.REWRITE
                return CallPlace(chain=chain, parent=known, num_shared_messages=num, branch=reason)
        if num_near >= 0:
            known = self._by_prefix[_key(chain, num_near)]
            reason = self._branch_reason(known, num_near, messages)
            return CallPlace(chain=chain, parent=known, num_shared_messages=num_near, branch=reason)
        # What an agent asks aside before it begins, a title say, makes it nobody's sub-agent.
        if not self.num_turns or (tools and not self._has_main):
            return CallPlace(chain=chain)
        latest = next(reversed(self._by_prompt.values()), None)
        return CallPlace(chain=chain, parent=latest, branch=BranchReason.SUB_AGENT)

    def place_text(self, chain: Sequence[bytes]) -> CallPlace:
        """Return where a plain completion belongs: nothing but its own prompt is looked for.

        chain: its `hash_text` alone.
        """
        start = chain[0]
        known = self._by_prompt.get(start)
        if known is not None:
            return CallPlace(chain=[start], parent=known, is_same_prompt=True)
        latest = next(reversed(self._by_prompt.values()), None)
        branch = None if latest is None else BranchReason.REWRITE
        return CallPlace(chain=[start], parent=latest, branch=branch)

    def _branch_reason(
        self, known: KnownAnswer, num_common_messages: int, messages: Sequence[Message]
    ) -> BranchReason:
        """Return why a call that shares its first messages with `known` does not go on from it."""
        num_leading, own = _num_leading(messages), messages[num_common_messages:]
        is_opening_alone = num_common_messages <= num_leading
        if num_common_messages < num_leading:
            return BranchReason.SUB_AGENT
        if any(_quotes(m["content"], text) for m in own for text in self._latest_texts):
            return BranchReason.COMPACTION
        is_fresh = is_opening_alone and all(m["role"] in ("system", "user") for m in own)
        if is_fresh and (known.is_waiting or known.num_messages <= num_leading + 1):
            return BranchReason.SUB_AGENT
        if len(messages) < known.num_messages:
            return BranchReason.COMPACTION
        return BranchReason.SUB_AGENT if is_opening_alone else BranchReason.REWRITE

    def commit(self, place: CallPlace, turns: Sequence[Turn]) -> None:
        """Take up the answers of one call, which are in the store.

        The first one's parent is the place's; the others share its prompt.
        """
        first: KnownAnswer | None = None
        for turn in turns:
            known = self._add(place.chain, turn, first or place.parent)
            first = first or known

    def _add(self, chain: Sequence[bytes], turn: Turn, parent: KnownAnswer | None) -> KnownAnswer:
        answer, tokens = turn.answer, turn.tokens or TokenRecord()
        has_reasoning = bool(answer and answer.get("reasoning_content"))
        known = KnownAnswer(
            index=self.num_turns,
            parent=parent,
            num_shared=tokens.num_shared,
            prompt_ids=array("i", tokens.prompt_ids),
            completion_ids=array("i", tokens.completion_ids),
            num_messages=len(chain) - 1,
            has_reasoning=has_reasoning or (parent is not None and parent.has_reasoning),
            has_routes=bool(tokens.routes),
            is_waiting=bool(answer and answer.get("tool_calls")),
        )
        self.num_turns += 1
        if parent is not None and turn.num_shared_messages > parent.num_messages:
            parent.is_waiting = False
        goes_on = parent is not None and tokens.branch is None and bool(tokens.prompt_ids)
        self._has_main = self._has_main or bool(turn.tools) or goes_on
        # The first one with a prompt holds its ids; the others hold none.
        whole = _key(chain, len(chain) - 1)
        self._by_prompt.setdefault(whole, known)
        self._by_prompt.move_to_end(whole)
        for num in range(len(chain)):
            self._by_prefix[_key(chain, num)] = known
        self._by_messages[chain[-1]] = known
        if answer is not None:
            after = _hash(chain[-1] if len(chain) > 1 else _START, canonical(answer))
            self._by_answer[chain[0] + after] = self._by_prefix[chain[0] + after] = known
            self._by_messages[after] = known
            if not answer.get("tool_calls"):
                self._latest_texts.append(answer["content"])
        for table, limit in (
            (self._by_answer, MAX_TURNS),
            (self._by_prompt, MAX_TURNS),
            (self._by_prefix, 4 * MAX_TURNS),
            (self._by_messages, 2 * MAX_TURNS),
        ):
            while len(table) > limit:
                table.popitem(last=False)
        return known

    @classmethod
    def restore(cls, turns: Sequence[Turn]) -> Conversation:
        """Return the tree of what the store holds of a session."""
        conversation = cls()
        known: list[KnownAnswer] = []
        for index, turn in enumerate(turns):
            parent = parent_of(turns, index)
            chain = hash_chain(prompt_messages(turns, index), turn.tools)
            before = None if parent is None else known[parent]
            known.append(conversation._add(chain, turn, before))
        return conversation


def as_ids(ids: Sequence[int]) -> array[int]:
    """Return ids as an array, which is compared and copied as one piece of memory."""
    return ids if isinstance(ids, array) else array("i", ids)


def _num_leading(messages: Sequence[Message]) -> int:
    return next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))


def _quotes(content: str, text: str) -> bool:
    """Return whether a message holds a long line of a text."""
    lines = (line.strip() for line in text.splitlines())
    return any(line in content for line in lines if len(line) >= MIN_QUOTED)


def hash_text(prompt: str | Sequence[int], *, has_special_tokens: bool = True) -> bytes:
    """Return a hash for the prompt of a plain completion."""
    text = prompt if isinstance(prompt, str) else json.dumps(list(prompt))
    return _hash(b"completion" if has_special_tokens else b"completion of bare text", text)


def hash_chain(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, known: Sequence[bytes] = ()
) -> list[bytes]:
    """Return a hash for the tools, and one for each beginning of the messages whatever the tools.

    known: the first ones, as far as they are known.
    """
    chain = list(known)
    if not chain:
        chain.append(_hash(b"chat", json.dumps(list(tools), sort_keys=True) if tools else ""))
    for message in messages[len(chain) - 1 :]:
        chain.append(_hash(chain[-1] if len(chain) > 1 else _START, canonical(message)))
    return chain


def _key(chain: Sequence[bytes], num: int) -> bytes:
    """Return what stands for the tools and the first `num` messages."""
    return chain[0] + chain[num] if num else chain[0]


def canonical(message: Message) -> str:
    """Return what makes a message the same message when a client sends it again.

    Reasoning, call ids and outer blanks do not: clients drop, rename and trim them. Arguments are
    compared as JSON values where they are JSON.
    """
    asked = message.get("tool_calls")
    if not asked:
        return f"{message['role']}\0{message['content'].strip()}"
    calls = [(call["function"]["name"], _canonical_arguments(call)) for call in asked]
    return f"{message['role']}\0{message['content'].strip()}\0{calls!r}"


def _canonical_arguments(call: ToolCallMessage) -> str:
    try:
        return json.dumps(arguments_of(call), sort_keys=True)
    except (ValueError, RecursionError):
        return call["function"]["arguments"]


def _hash(before: bytes, text: str) -> bytes:
    data = before + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()
