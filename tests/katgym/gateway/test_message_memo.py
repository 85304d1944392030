"""Calls read with and without what the session's last call was: nobody can tell."""

from __future__ import annotations

import json
import types
from array import array
from typing import Any

import pytest

from katgym.gateway.answering.id_texts import MIN_IDS, IdTexts
from katgym.gateway.call import CallContext
from katgym.gateway.conversation import hash_chain
from katgym.gateway.errors import GatewayError
from katgym.gateway.wire import openai_chat, openai_responses
from katgym.gateway.wire.message_memo import MessageMemo

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def context(messages: Any, session: str = "s", api: Any = openai_chat, **more: Any) -> CallContext:
    body = {"model": "m", "messages": messages, **more}
    live: Any = types.SimpleNamespace(session_id=session)
    return CallContext(session=live, api=api, body=body)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asking(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def check(memo: MessageMemo, given: CallContext) -> None:
    """A call is what it is without a memo."""
    call, chain = memo.read(given)
    assert call == openai_chat.parse(given.body)
    assert chain == hash_chain(call.messages, call.tools)


def test_a_conversation_that_grows_forks_and_changes_its_tools_is_read_as_ever() -> None:
    memo = MessageMemo()
    said = [user("a"), asking('{"x": 1}'), {"role": "tool", "content": "t", "tool_call_id": "c"}]
    check(memo, context(said[:1]))
    check(memo, context(said, tools=[TOOL]))
    check(memo, context([*said, user("b")], tools=[TOOL]))
    check(memo, context([*said, user("b")]))
    check(memo, context([*said, user("b")]))
    check(memo, context([*said[:2], user("other"), user("b"), user("c")]))
    check(memo, context(said[:2]))
    check(memo, context([user("z")]))
    check(memo, context([user("a")], session="another"))


def test_messages_that_are_known_are_the_same_objects() -> None:
    memo = MessageMemo()
    first, _ = memo.read(context([user("a"), user("b")]))
    second, _ = memo.read(context([user("a"), user("b"), user("c")]))
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=False))
    other, _ = memo.read(context([user("a"), user("b"), user("c")], session="another"))
    assert other.messages[0] is not first.messages[0]


def test_values_that_python_calls_equal_are_other_arguments() -> None:
    memo = MessageMemo()
    for value in (1, True, 1.0):
        check(memo, context([user("a"), asking({"x": value}), user("b")]))


def test_errors_tell_the_message_by_its_place() -> None:
    memo = MessageMemo()
    memo.read(context([user("a"), user("b")]))
    with pytest.raises(GatewayError, match=r"messages\[2\]"):
        memo.read(context([user("a"), user("b"), {"role": "x"}]))
    for wrong in ([], None, "text"):
        with pytest.raises(GatewayError, match="messages"):
            memo.read(context(wrong))


def test_other_apis_are_read_whole() -> None:
    given = context([], api=openai_responses, input="Hi.")
    call, chain = MessageMemo().read(given)
    assert (call, chain) == (openai_responses.parse(given.body), ())


def test_what_is_remembered_is_bounded_by_its_text() -> None:
    memo = MessageMemo(max_characters=100)
    for number in range(5):
        memo.read(context([user("x" * 40)], session=str(number)))
    assert list(memo._last) == ["3", "4"]
    for _ in range(3):
        memo.read(context([user("x" * 40), user("y" * 10)], session="4"))
    assert memo._num_characters == 90
    memo.read(context([user("x" * 101)], session="5"))
    assert not memo._last and memo._num_characters == 0


# ---- prompts' ids as JSON, of which a session's beginnings are remembered


def test_prompts_that_go_on_and_those_that_do_not_are_the_same_json() -> None:
    texts = IdTexts()
    ids = array("i", range(MIN_IDS + 5))
    longer = ids + array("i", [7, 8])
    for asked in (ids, longer, longer, ids, longer[1:], array("i", [3]), array("i")):
        assert json.loads(texts.encode("s", asked)) == list(asked)
        assert json.loads(texts.encode("t", list(asked))) == list(asked)


def test_what_is_remembered_of_ids_has_a_limit() -> None:
    ids = array("i", range(MIN_IDS))
    texts = IdTexts(max_bytes=3 * 9 * MIN_IDS)
    for session in "abcdef":
        assert json.loads(texts.encode(session, ids)) == list(ids)
    assert 1 <= len(texts._known) <= 3
    assert texts._num_bytes <= 3 * 9 * MIN_IDS
