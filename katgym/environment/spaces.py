"""Gymnasium spaces over chat messages, for observations and actions.

`gymnasium.spaces.Text` needs a finite charset and rejects most of Unicode, and Gymnasium's
asynchronous vector env returns garbage for it. These take all text, and in place of shared memory,
which has a fixed size, such a vector env's workers send observations through queues.
"""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from katgym.environment.messages import Message, assistant
from katgym.environment.tool import Tool

_ALPHABETS = (
    "abcdefghij KLMNOP",
    "0123456789+-*/=().",
    "äöüßéñ ",
    "πΣ∞≤",
    "数学游戏",
    "🙂🎲",
    "\n\t",
)
_ROLES = frozenset({"system", "user", "assistant", "tool"})


class _MessageSpace(Space[Any]):
    """What both spaces share: no shape, no dtype, a mask is an error."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def _rng(self, mask: object, probability: object) -> random.Random:
        if mask is not None or probability is not None:
            raise ValueError(f"{type(self).__name__}.sample takes no mask and no probability")
        return random.Random(int(self.np_random.integers(2**63)))

    def to_jsonable(self, sample_n: Iterable[Any]) -> list[Any]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self._key())))

    def _key(self) -> object:
        return None


class Messages(_MessageSpace):
    """Lists of chat messages: the observation, i.e. what is new since the last step.

    A member is a list (or tuple) of mappings with a known `role` and a `str` content without
    lone surrogates.
    """

    def sample(self, mask: None = None, probability: None = None) -> list[Message]:
        rng = self._rng(mask, probability)
        count = rng.randrange(3)
        return [
            {"role": rng.choice(["user", "system"]), "content": _text(rng)} for _ in range(count)
        ]

    def contains(self, x: Any) -> bool:
        return isinstance(x, list | tuple) and all(_is_message(m) for m in x)

    def __repr__(self) -> str:
        return "Messages()"


Mailbox = tuple[Any, Any]
"""Of one worker: a queue of observations, and how many it has put there."""


class ReceivedMessages(Sequence[list[Message]]):
    """The newest observation of every worker; a deep copy is a tuple of them as they are then."""

    def __init__(self, mailboxes: Sequence[Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._num_read = [0] * len(mailboxes)
        self._newest: list[list[Message]] = [[] for _ in mailboxes]

    def __len__(self) -> int:
        return len(self._mailboxes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        queue, num_put = self._mailboxes[index]
        while self._num_read[index] < num_put.value:
            self._newest[index] = queue.get()
            self._num_read[index] += 1
        return self._newest[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[list[Message], ...]:
        return tuple(list(self[place]) for place in range(len(self)))


@create_shared_memory.register(Messages)
def _make_mailboxes(space: Messages, n: int = 1, ctx: ModuleType | None = None) -> list[Mailbox]:
    made: Any = ctx or multiprocessing
    return [(made.Queue(), made.Value("q", 0)) for _ in range(n)]


@write_to_shared_memory.register(Messages)
def _put_messages(
    space: Messages, index: int, value: list[Message], shared_memory: Sequence[Mailbox]
) -> None:
    queue, num_put = shared_memory[index]
    queue.cancel_join_thread()  # a worker ends, also when nobody reads what it sent
    queue.put(value)
    num_put.value += 1


@read_from_shared_memory.register(Messages)
def _receive_messages(
    space: Messages, shared_memory: Sequence[Mailbox], n: int = 1
) -> ReceivedMessages:
    return ReceivedMessages(shared_memory)


class AssistantMessage(_MessageSpace):
    """One assistant message, or a `str` as sugar for its content: the action.

    `sample` draws a text, or one to three calls of the given tools with arguments of the right
    types.
    """

    def __init__(
        self, tools: Mapping[str, Tool] | None = None, seed: int | np.random.Generator | None = None
    ) -> None:
        self.tools = dict(tools or {})
        super().__init__(seed)

    def sample(self, mask: None = None, probability: None = None) -> Message:
        rng = self._rng(mask, probability)
        if not self.tools or rng.random() < 0.25:
            return assistant(_text(rng))
        names = [rng.choice(sorted(self.tools)) for _ in range(rng.randint(1, 3))]
        return assistant("", [(n, sample_arguments(self.tools[n].parameters, rng)) for n in names])

    def contains(self, x: Any) -> bool:
        if isinstance(x, str):
            return _is_unicode(x)
        if not isinstance(x, Mapping) or x.get("role", "assistant") != "assistant":
            return False
        calls = x.get("tool_calls") or []
        content = x.get("content")
        return (content is None or (isinstance(content, str) and _is_unicode(content))) and (
            isinstance(calls, list | tuple) and all(isinstance(c, Mapping) for c in calls)
        )

    def _key(self) -> object:
        return [tool.to_openai() for _, tool in sorted(self.tools.items())]

    def __repr__(self) -> str:
        return f"AssistantMessage(tools={sorted(self.tools)})"


def sample_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Draw arguments for a tool's `parameters`; optional ones are left out half the time."""
    required = set(schema.get("required", ()))
    definitions = schema.get("$defs", {})
    return {
        name: _value(part, rng, definitions, 0)
        for name, part in schema.get("properties", {}).items()
        if name in required or rng.random() < 0.5
    }


def _value(
    schema: Mapping[str, Any], rng: random.Random, definitions: Mapping[str, Any], depth: int
) -> Any:
    if "$ref" in schema:
        return _value(definitions[schema["$ref"].rsplit("/", 1)[1]], rng, definitions, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = schema[key]
            return _value(
                options[-1] if depth > 4 else rng.choice(options), rng, definitions, depth
            )
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        return _number(schema, rng, is_integer=kind == "integer")
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        first = [
            _value(part, rng, definitions, depth + 1) for part in schema.get("prefixItems", ())
        ]
        fewest = max(schema.get("minItems", 0), len(first))
        items = schema.get("items") or {}
        count = rng.randint(fewest, max(fewest, schema.get("maxItems", fewest + 3)))
        more = [_value(items, rng, definitions, depth + 1) for _ in range(count - len(first))]
        if schema.get("uniqueItems"):
            more = [item for place, item in enumerate(more) if item not in more[:place]]
        return first + more
    if kind == "object":
        inner = {**schema, "$defs": definitions}
        return sample_arguments(inner, rng)
    text = _text(rng)
    text += "a" * (schema.get("minLength", 0) - len(text))
    return text[: schema.get("maxLength", len(text))]


def _number(schema: Mapping[str, Any], rng: random.Random, *, is_integer: bool) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None or high >= 0 else high - 100
    if high is None:
        high = low + 100
    if is_integer:
        low = math.floor(low) + 1 if low == schema.get("exclusiveMinimum") else math.ceil(low)
        high = math.ceil(high) - 1 if high == schema.get("exclusiveMaximum") else math.floor(high)
        return rng.randint(low, max(low, high))
    number = rng.uniform(low, high)
    is_edge = number in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
    return (low + high) / 2 if is_edge else number


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(rng.choice(_ALPHABETS)) for _ in range(rng.randrange(24)))


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_message(message: object) -> bool:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) and _is_unicode(content)
