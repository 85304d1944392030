"""The `*** Begin Patch` envelope, and patches in messages."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    apply_patches,
    line_opcodes,
    parse_diff,
    parse_proposal,
    update_tree,
)
from katgym_envs.swe.patching.proposal import code_blocks
from katgym_envs.swe.patching.shown_text import ShownText
from katgym_envs.swe.patching.tree import find_lines, split_lines

TREE = {
    "a.py": b"class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n"
    b"        return 1\n",
    "end": b"x\ny",
}


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def after(*lines: str) -> dict[str, FileEntry]:
    return update_tree(TREE, parse_proposal(envelope(*lines)).apply(TREE))


def test_lines_are_found_by_content_below_the_lines_that_are_named() -> None:
    changed = after(
        "*** Update File: a.py", "@@ class B:", "     def f(self):", "-        return 1",
        "+        return 2",
    )  # fmt: skip
    assert changed["a.py"].content.endswith(b"class B:\n    def f(self):\n        return 2\n")
    assert changed["a.py"].content.startswith(TREE["a.py"][:45])


def test_files_are_added_deleted_and_moved() -> None:
    changed = after(
        "*** Add File: new/b.py", "+x = 1", "+", "*** Delete File: end", "*** Update File: a.py",
        "*** Move to: c.py", "@@ class A:", "-    def f(self):", "+    def g(self):",
    )  # fmt: skip
    assert set(changed) == {"new/b.py", "c.py"}
    assert changed["new/b.py"].content == b"x = 1\n\n"
    assert b"class A:\n    def g(self):" in changed["c.py"].content


def test_a_file_without_a_last_line_break_keeps_that() -> None:
    changed = after("*** Update File: end", "@@", " x", "-y", "+z", "*** End of File")
    assert changed["end"].content == b"x\nz"


def test_text_is_added_below_an_anchor_or_at_the_end() -> None:
    assert (
        b"class B:\n    y = 1\n"
        in after("*** Update File: a.py", "@@ class B:", "+    y = 1")["a.py"].content
    )
    assert after("*** Update File: a.py", "@@", "+y = 1")["a.py"].content.endswith(b"y = 1\n")


def test_an_envelope_that_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    cases = (
        (("*** Update File: a.py", "-        return 1", "+x"), PatchFailure.CONTEXT_AMBIGUOUS),
        (("*** Update File: a.py", "-        return 3", "+x"), PatchFailure.CONTEXT_MISMATCH),
        (("*** Update File: a.py", "@@ class C:", "-x", "+y"), PatchFailure.CONTEXT_MISMATCH),
        (("*** Update File: a.py", " class A:"), PatchFailure.MALFORMED),
        (("*** Update File: a.py",), PatchFailure.MALFORMED),
        (("*** Update File: none", "-x", "+y"), PatchFailure.NOT_FOUND),
        (("*** Add File: end", "+x"), PatchFailure.ALREADY_EXISTS),
        (("*** Add File: x", "y"), PatchFailure.MALFORMED),
        (("*** Add File: end/x", "+y"), PatchFailure.NOT_A_FILE),
        (("*** Add File: ../x", "+y"), PatchFailure.PATH_ESCAPES),
        (("*** Add File: /x", "+y"), PatchFailure.PATH_ABSOLUTE),
        (("*** Delete File: end", "*** Add File: end", "+x"), PatchFailure.DUPLICATE_PATH),
        (("what",), PatchFailure.MALFORMED),
        ((), PatchFailure.EMPTY),
    )
    for lines, reason in cases:
        with subtests.test(lines=lines):
            with pytest.raises(PatchError) as caught:
                after(*lines)
            assert caught.value.reason is reason, str(caught.value)


DIFF = "--- a/end\n+++ b/end\n@@ -1 +1 @@\n-x\n+z\n"


def test_a_patch_is_found_in_a_message(subtests: pytest.Subtests) -> None:
    messages = (
        DIFF,
        f"The bug is here:\n```python\nx = 1\n```\nso:\n```diff\n{DIFF}```\nDone.",
        f"~~~patch\n{DIFF}~~~",
        f"```\n{DIFF}```",
        f"Sure.\n\n{DIFF}",
        "I did\n" + envelope("*** Update File: end", "-x", "+z") + "\nok",
    )
    for message in messages:
        with subtests.test(message=message):
            proposal = parse_proposal(message)
            assert proposal.paths == {"end"}
            assert update_tree(TREE, proposal.apply(TREE))["end"].content == b"z\ny"


def test_a_message_without_one_patch_is_refused_and_the_error_can_be_sent() -> None:
    refused = {
        "I cannot.": "no patch found",
        f"```diff\n{DIFF}```\n```diff\n{DIFF}```": "more than one code block",
        envelope("*** Delete File: end") * 2: "more than one",
        "*** Begin Patch\n*** Delete File: end\n": "without",
        "": "is empty",
    }
    for message, words in refused.items():
        with pytest.raises(PatchError, match=words) as caught:
            parse_proposal(message)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.reason, str(again)) == (caught.value.reason, str(caught.value))


FENCED = re.compile(
    r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n`~]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
"""What a block is, by a pattern whose time is quadratic."""


@given(st.lists(st.sampled_from(["```", "````", "~~~", "```diff", "``` ", "a", "", " ```"])))
def test_blocks_are_what_the_pattern_of_a_fence_finds(lines: list[str]) -> None:
    text = "\n".join(lines)
    wanted = [(b["info"].strip(), b["body"]) for b in FENCED.finditer(text)]
    assert list(code_blocks(text)) == wanted


@given(st.binary(max_size=4), st.lists(st.sampled_from([b"a", b"b", b"", b"ab"]), max_size=12))
def test_lines_are_found_where_they_stand(end: bytes, lines: list[bytes]) -> None:
    text = b"".join(line + b"\n" for line in lines) + end.replace(b"\n", b"")
    rows = split_lines(text)
    for wanted in ([b"a\n"], [b"a\n", b"b\n"], [b"\n", b"\n"], rows[-1:], rows[-2:]):
        for start in range(len(rows)):
            places = [
                len(b"".join(rows[:i]))
                for i in range(start, len(rows))
                if wanted and rows[i : i + len(wanted)] == wanted
            ]
            first = len(b"".join(rows[:start]))
            if wanted:
                assert find_lines(text, b"".join(wanted), first) == places[:6]


def test_an_envelope_with_half_a_character_is_malformed() -> None:
    with pytest.raises(PatchError, match="half a character") as caught:
        parse_proposal(envelope("*** Add File: a", "+x\ud800"))
    assert caught.value.reason is PatchFailure.MALFORMED


def test_a_middle_that_would_take_too_long_to_match_is_replaced_as_a_whole() -> None:
    def sides(size: int) -> tuple[list[bytes], list[bytes]]:
        old, new = ([line for i in range(size) for line in (b"", b"%s%d" % (side, i))]
                    for side in (b"a", b"b"))  # fmt: skip
        return [b"first", *old], [b"first", *new]

    assert len(line_opcodes(*sides(20))) > 20
    assert [code[0] for code in line_opcodes(*sides(2000))] == ["equal", "replace"]


LINE = st.sampled_from([b"a", b"b", b"", b"\x0c", b"c\rd", b"\xff"])
END = st.sampled_from([b"\n", b"\r\n"])
CHANGE = st.tuples(st.integers(0, 2), st.integers(0, 2), st.lists(LINE, max_size=4))


@given(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(LINE, END), min_size=1, max_size=6),
    st.sampled_from([b"", b"last", b"a"]),
    st.lists(CHANGE, max_size=3),
)
def test_an_edit_changes_what_it_names_and_no_byte_beside_it(
    mark: bytes,
    ended: list[tuple[bytes, bytes]],
    last: bytes,
    changes: list[tuple[int, int, list[bytes]]],
) -> None:
    raw = [line + end for line, end in ended] + [last] * bool(last)
    shown = ShownText(mark + b"".join(raw))
    assert shown.text == b"".join(raw).replace(b"\r\n", b"\n")
    edits, pattern, done = [], re.escape(mark), 0
    for skipped, size, new in changes:
        start = min(done + skipped, len(ended))
        size = min(size, len(ended) - start)
        edits.append((start, size, [line + b"\n" for line in new]))
        pattern += re.escape(b"".join(raw[done:start]))
        pattern += b"".join(re.escape(line) + rb"\r?\n" for line in new)
        done = start + size
    pattern += re.escape(b"".join(raw[done:]))
    for is_last_kept in (False, True):
        found = shown.edit(edits, is_last_kept=is_last_kept)
        assert re.fullmatch(pattern, found) or (not found and pattern == re.escape(mark))


def test_a_line_that_stays_within_an_edit_keeps_every_byte() -> None:
    shown = ShownText(b"a\r\r\nb\nc\r\nd")
    assert shown.lines == [b"a\r\n", b"b\n", b"c\n", b"d"]
    edited = shown.edit([(0, 4, [b"a\r\n", b"b\n", b"C\n", b"d"])])
    assert edited == b"a\r\r\nb\nC\r\nd"


def test_lines_as_shown_apply_to_other_line_ends_in_messages_alone() -> None:
    tree = {"a.txt": b"a\r\nb\r\n"}
    text = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert parse_proposal(text).apply(tree) == {"a.txt": FileEntry(content=b"a\r\nc\r\n")}
    with pytest.raises(PatchError, match="the patch expects 'a"):
        apply_patches(tree, parse_diff(text))
    deleted = "--- a/a.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    tree = {"a.txt": b"\xef\xbb\xbfa\r\nb\r\n"}
    assert parse_proposal(deleted).apply(tree) == {"a.txt": None}
