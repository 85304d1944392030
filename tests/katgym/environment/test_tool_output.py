"""What tools return becomes text that is safe to show, cut in the middle where it is too long."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_play import FAST, one

from katgym.environment.scheduler import SchedulerConfig, ToolResult
from katgym.environment.tool_output import readable_line, readable_text, shorten, truncate_output
from katgym.errors import ToolError

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


def result_of(value: object) -> ToolResult:
    def give() -> Any:
        return value

    return one(give)


def test_results_become_text() -> None:
    loop: list[Any] = []
    loop.append(loop)
    fields = {name: getattr(FAST, name) for name in FAST.__slots__}
    cases: list[tuple[Any, str]] = [
        ("plain 'text'", "plain 'text'"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ([1, "ä"], '[1,"ä"]'),
        ({"a": None}, '{"a":null}'),
        ((1, 2), "[1,2]"),
        (FAST, json.dumps(fields, separators=(",", ":"))),
        (math.nan, '"NaN"'),
        ({"a": [math.inf, (-math.inf, 1e16)]}, '{"a":["Infinity",["-Infinity",1e16]]}'),
        (1 + 2j, "(1+2j)"),
        ("a\ud800b", "a?b"),
        (["\ud800"], "['\\ud800']"),
        (loop, "[[...]]"),
    ]
    results = [result_of(value) for value, _ in cases]
    assert [result.content for result in results] == [text for _, text in cases]
    assert {result.error for result in results} == {None}


def test_a_result_is_a_message_and_a_tool_may_print(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty() -> str:
        print("to the console")
        return "x"

    message = {"role": "tool", "tool_call_id": "call_0", "name": "chatty", "content": "x"}
    assert one(chatty).to_message() == message
    assert capsys.readouterr().out == "to the console\n"


def test_long_results_and_errors_are_cut_in_the_middle() -> None:
    def long(is_error: bool) -> str:
        text = "h" * 500 + "t" * 500
        if is_error:
            raise ToolError(text)
        return text

    config = SchedulerConfig(max_output_bytes=64)
    for is_error in (False, True):
        result = one(long, config=config, is_error=is_error)
        assert result.content == "h" * 32 + "\n[... 936 bytes left out ...]\n" + "t" * 32
        assert result.num_bytes_omitted == 936


def test_output_over_the_limit_is_cut_but_no_character_in_half() -> None:
    for size in (63, 64):
        assert truncate_output("x" * size, 64) == ("x" * size, 0)
    cut = "x" * 32 + "\n[... 1 bytes left out ...]\n" + "x" * 32
    assert truncate_output("x" * 65, 64) == (cut, 1)
    text, omitted = truncate_output("é" * 50, 65)  # 100 bytes; halves of 33 and 32
    head, _, tail = text.split("\n")
    assert (head, tail, omitted) == ("é" * 16, "é" * 16, 36)


@given(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=200), st.integers(64, 300)
)
def test_truncation_accounts_for_every_byte(text: str, max_bytes: int) -> None:
    cut, omitted = truncate_output(text, max_bytes)
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        assert (cut, omitted) == (data.decode(), 0)
        return
    note = f"\n[... {omitted} bytes left out ...]\n"
    head, tail = cut.split(note)
    kept = len(head.encode()) + len(tail.encode())
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert kept + omitted == len(data)
    assert max_bytes - 6 <= kept <= max_bytes


# ---- control characters


def test_control_characters_become_visible() -> None:
    cases = {
        "a\tb\nc": "a\tb\nc",
        "one\r\ntwo\r\n": "one\ntwo\n",
        "\x1b[31mred\x1b[0m": "\\x1b[31mred\\x1b[0m",
        "good\rbad": "good\\x0dbad",
        "a\x00b\x7f\x9bc": "a\\x00b\\x7f\\x9bc",
        "if x:\u202e } ": "if x:\\u202e } ",
        "a\u2028b\u2029\x85": "a\\u2028b\\u2029\\x85",
        "é 漢 🙂": "é 漢 🙂",
    }
    assert {text: readable_text(text) for text in cases} == cases


@given(st.text())
def test_a_line_is_one_line_and_a_text_has_no_other_line_breaks(text: str) -> None:
    assert len(readable_line(text).splitlines()) == min(len(text), 1)
    assert readable_text(text).splitlines(keepends=True) == re.findall(
        r".*\n|.+", readable_text(text)
    )


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    assert all(c in "\n\t" or c.isprintable() or ord(c) > 0x9F for c in readable_text(text))


def test_the_middle_is_left_out_and_counted() -> None:
    assert shorten("abcdefghij", 4) == "ab\n[6 characters left out]\nij"
    assert shorten("abcdefghij", 5) == "ab\n[5 characters left out]\nhij"
    assert shorten("abcd", 4) == "abcd"
