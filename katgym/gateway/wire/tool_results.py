"""Tool results in the order of the calls that they answer, whatever order they came in.

Chat formats write results without ids: the model takes the first one for the first call's. Not
here: reading messages (one module each).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from katgym.environment.messages import Message
from katgym.gateway.wire.fields import body_error

_ID, _NAME, _ANY = "id", "name", "any"


def pair_results(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages whose tool results are in their calls' order; the same ones if they were.

    Results change places among themselves, between one answer of the model and the next; what else
    is said there stays where it is. A result without an id is the first open call's: of its name,
    where it has one. Results of earlier turns' calls come behind the others, and so does a second
    one of a call, as Gemini CLI sends where it takes a conversation up again.

    Raises `MALFORMED` for a result of no call before it, and for one of a call when an earlier call
    of the same message has none.
    """
    if _are_in_order(messages):
        return messages
    calls = _Calls()
    places: list[int] = []
    found: list[tuple[bool, int, int]] = []
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            places += _in_order(calls, found)
            found = []
            if message.get("tool_calls"):
                calls.begin_turn(message)
        elif message["role"] == "tool":
            found.append((*calls.take(message), place))
    places += _in_order(calls, found)
    results = sorted(places)
    if places == results:
        return messages
    paired = list(messages)
    for place, own in zip(results, places, strict=True):
        paired[place] = messages[own]
    return paired


def _are_in_order(messages: Sequence[Message]) -> bool:
    """Return whether every result has the id of the next call: nearly all do, and it is cheap."""
    ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not ids or message.get("tool_call_id") != ids.pop():
                return False
        elif message.get("tool_calls"):
            ids = [call["id"] for call in reversed(message["tool_calls"])]
    return True


def _in_order(calls: _Calls, found: list[tuple[bool, int, int]]) -> list[int]:
    """Return the places of results as their calls stand; those that come behind others, last."""
    if found:
        calls.check_gap()
    return [place for *_, place in sorted(found)]


class _Calls:
    """Calls by number, and which of them have no result yet."""

    def __init__(self) -> None:
        self.first = 0
        """Number of the latest turn's first call."""
        self._ids: list[str] = []
        """Of the latest turn's calls."""
        self._open: dict[tuple[str, str], deque[int]] = {}
        """Calls of the latest turn: by id, by name, and all."""
        self._late: dict[str, deque[int]] = {}
        """Calls of earlier turns, by id."""
        self._done: set[int] = set()
        self._known: dict[str, int] = {}
        """The latest call of each id."""

    def begin_turn(self, message: Message) -> None:
        """Take up the calls of an assistant message."""
        for (kind, call_id), numbers in self._open.items():
            if kind == _ID:
                self._late.setdefault(call_id, deque()).extend(numbers)
        self.first += len(self._ids)
        self._ids, self._open = [], {}
        for number, call in enumerate(message["tool_calls"], self.first):
            self._ids.append(call["id"])
            self._known[call["id"]] = number
            for key in ((_ID, call["id"]), (_NAME, call["function"]["name"]), (_ANY, "")):
                self._open.setdefault(key, deque()).append(number)

    def take(self, message: Message) -> tuple[bool, int]:
        """Return whether a result comes behind others, and the number of the call it answers."""
        call_id = message.get("tool_call_id") or ""
        keys = [(_ID, call_id)] if call_id else [(_NAME, message.get("name", "")), (_ANY, "")]
        queues = [*(self._open.get(key) for key in keys), self._late.get(call_id)]
        number = next((n for q in queues if q and (n := self._next(q)) is not None), None)
        if number is not None:
            self._done.add(number)
            return number < self.first, number
        if not call_id:
            return True, -1  # what a tool says that nobody called
        if call_id in self._known:
            return True, self._known[call_id]
        raise body_error(
            f"a tool result is of the call {call_id!r:.80}, which no message before it makes: send"
            " the assistant message with that call, and its id as it was served"
        )

    def _next(self, numbers: deque[int]) -> int | None:
        """Return the first call of a queue that has no result; drop what stands before it."""
        while numbers and numbers[0] in self._done:
            numbers.popleft()
        return numbers[0] if numbers else None

    def check_gap(self) -> None:
        """Raise if a call of the latest turn has a result and one before it has none."""
        numbers = range(self.first, self.first + len(self._ids))
        is_done = [number in self._done for number in numbers]
        missing = is_done.index(False) if False in is_done else len(is_done)
        if any(is_done[missing:]):
            raise body_error(
                f"the call {self._ids[missing]!r:.80} has no tool result, and a later call of its"
                " message has one: send a result for each call, also for one that was not run"
            )
