"""What tools return becomes text, cut in the middle where it is too long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_play import FAST, one

from katgym.environment.scheduler import SchedulerConfig
from katgym.environment.tool_output import truncate_output
from katgym.errors import ToolError

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain 'text'", "plain 'text'"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ([1, "ä"], '[1,"ä"]'),
        ({"a": None}, '{"a":null}'),
        ((1, 2), "[1,2]"),
        (FAST, json.dumps({f: getattr(FAST, f) for f in FAST.__slots__}, separators=(",", ":"))),
        (1 + 2j, "(1+2j)"),
        ("a\ud800b", "a?b"),
        (["\ud800"], "['\\ud800']"),
    ],
)
def test_results_become_text(value: object, text: str) -> None:
    def give() -> Any:
        return value

    result = one(give)
    assert (result.content, result.error) == (text, None)


def test_a_result_that_contains_itself_becomes_its_repr() -> None:
    loop: list[Any] = []
    loop.append(loop)

    def give() -> Any:
        return loop

    assert one(give).content == "[[...]]"


def test_to_message() -> None:
    def f() -> str:
        return "x"

    assert one(f).to_message() == {
        "role": "tool",
        "tool_call_id": "call_0",
        "name": "f",
        "content": "x",
    }


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


@pytest.mark.parametrize("size", [63, 64])
def test_output_within_the_limit_is_not_cut(size: int) -> None:
    assert truncate_output("x" * size, 64) == ("x" * size, 0)


def test_one_byte_over_the_limit_is_cut() -> None:
    assert truncate_output("x" * 65, 64) == (
        "x" * 32 + "\n[... 1 bytes left out ...]\n" + "x" * 32,
        1,
    )


def test_no_character_is_cut_in_half() -> None:
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


def test_a_tool_may_print(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty() -> str:
        print("to the console")
        return "result"

    assert one(chatty).content == "result"
    assert capsys.readouterr().out == "to the console\n"
