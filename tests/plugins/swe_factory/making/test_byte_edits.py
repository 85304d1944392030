"""Edits between two versions of a file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from katgym_envs.swe.sources.spec_format import FileEdit, apply_edits
from katgym_plugin_swe_factory.making.byte_edits import edits_between

LINES = st.lists(st.sampled_from([b"a\n", b"ab\n", b"\xe9\r\n", b"\n", b"b", b"\xff\x00\n"]))


@given(before=LINES, after=LINES)
def test_edits_of_any_bytes_give_the_other_version(before: list[bytes], after: list[bytes]) -> None:
    old, new = b"".join(before), b"".join(after)
    edits = edits_between(old, new)
    assert apply_edits(old, edits) == new
    assert (edits == ()) is (old == new)


def test_an_edit_holds_only_what_differs() -> None:
    old = b"def f(a, b):\n    return a < b\n"
    assert edits_between(old, old.replace(b"<", b"<=")) == (FileEdit(27, 27, "="),)
    assert edits_between(b"x = 1\ny = 2\nz = 3\n", b"x = 1\nz = 3\n") == (FileEdit(6, 12, ""),)
