"""What tools say becomes safe to show: control characters are visible, the middle is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.tool_output import readable_text, shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("good\rbad", "good\\x0dbad"),
        ("a\x00b\x7f\x9bc", "a\\x00b\\x7f\\x9bc"),
        ("if x:\u202e } ", "if x:\\u202e } "),
        ("é 漢 🙂", "é 漢 🙂"),
    ],
)
def test_control_characters_become_visible(text: str, expected: str) -> None:
    assert readable_text(text) == expected


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    assert all(c in "\n\t" or c.isprintable() or ord(c) > 0x9F for c in readable_text(text))


def test_the_middle_is_left_out_and_counted() -> None:
    assert shorten("abcdefghij", 4) == "ab\n[6 characters left out]\nij"
    assert shorten("abcdefghij", 5) == "ab\n[5 characters left out]\nhij"
    assert shorten("abcd", 4) == "abcd"
