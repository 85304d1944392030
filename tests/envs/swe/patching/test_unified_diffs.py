"""Unified diffs: read strictly, applied exactly, made so that git takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    apply_patches,
    as_tree,
    make_diff,
    parse_diff,
    update_tree,
)

BASE = {"a.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n", "b/c.txt": b"x"}


def applied(tree: dict[str, bytes], text: str | bytes) -> dict[str, FileEntry]:
    return update_tree(tree, apply_patches(tree, parse_diff(text)))


def reason_of(tree: dict[str, bytes], text: str | bytes) -> PatchFailure:
    with pytest.raises(PatchError) as caught:
        applied(tree, text)
    return caught.value.reason


def change(path: str, body: str, header: str = "@@ -1,2 +1,2 @@") -> str:
    return f"--- a/{path}\n+++ b/{path}\n{header}\n{body}"


def test_a_hunk_replaces_the_lines_it_names() -> None:
    text = change("a.py", " one\n-two\n+2\n three\n", "@@ -1,3 +1,3 @@ def f():")
    after = applied(BASE, text)
    assert after["a.py"].content == BASE["a.py"].replace(b"two", b"2")
    assert after["b/c.txt"].content == b"x"


def test_an_end_without_a_line_break_is_kept_made_and_taken() -> None:
    start = "--- a/b/c.txt\n+++ b/b/c.txt\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n"
    assert applied(BASE, start + "+y\n")["b/c.txt"].content == b"y\n"
    both = start + "+y\n\\ No newline at end of file\n"
    assert applied(BASE, both)["b/c.txt"].content == b"y"
    wrong = "--- a/b/c.txt\n+++ b/b/c.txt\n@@ -1 +1 @@\n-x\n+y\n"
    assert reason_of(BASE, wrong) is PatchFailure.CONTEXT_MISMATCH


def test_files_are_created_deleted_renamed_and_made_executable() -> None:
    text = (
        "diff --git a/new.sh b/new.sh\nnew file mode 100755\nindex 0000000..1\n"
        "--- /dev/null\n+++ b/new.sh\n@@ -0,0 +1 @@\n+echo\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/b/c.txt b/b/c.txt\ndeleted file mode 100644\nindex 1..0\n"
        "--- a/b/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n"
        "diff --git a/a.py b/d.py\nsimilarity index 90%\nrename from a.py\nrename to d.py\n"
        "--- a/a.py\n+++ b/d.py\n@@ -1,1 +1,1 @@\n-one\n+1\n"
    )
    after = applied(BASE, text)
    assert set(after) == {"new.sh", "empty", "d.py"}
    assert after["new.sh"] == FileEntry(content=b"echo\n", is_executable=True)
    assert after["empty"].content == b""
    assert after["d.py"].content == b"1" + BASE["a.py"][3:]


def test_a_mail_around_a_patch_is_skipped() -> None:
    text = "From: x\nSubject: fix\n\n" + change("a.py", " one\n-two\n+2\n") + "-- \n2.39\n\n"
    assert b"2\nthree" in applied(BASE, text)["a.py"].content


def test_a_context_line_that_lost_its_blank_still_fits() -> None:
    tree = {"a": b"x\n\ny\n"}
    assert (
        applied(tree, change("a", " x\n\n-y\n+z\n", "@@ -1,3 +1,3 @@"))["a"].content == b"x\n\nz\n"
    )


MOVE = "diff --git a/a.py b/{1}\nsimilarity index 100%\n{0} from a.py\n{0} to {1}\n"
REFUSED = [
    ("", PatchFailure.EMPTY, "is empty"),
    ("I fixed it.\n", PatchFailure.MALFORMED, "not a unified diff"),
    ("@@ -1 +1 @@\n-a\n+b\n", PatchFailure.MALFORMED, "before any"),
    (change("a.py", " one\n-zwei\n+2\n"), PatchFailure.CONTEXT_MISMATCH, "line 2 is 'two"),
    (change("a.py", " two\n-three\n+3\n"), PatchFailure.WRONG_LINE, "lines are at line 2"),
    (change("a.py", " one\n-two\n"), PatchFailure.MALFORMED, "ends within a hunk"),
    (change("a.py", " one\n-two\n+2\n three\n"), PatchFailure.MALFORMED, "line counts"),
    (change("a.py", " one\n-two\n+2\n", "@@ -1 +1,2 @@"), PatchFailure.MALFORMED, "not as many"),
    (change("a.py", "-one\n+1\n", "@@ -0 +1 @@"), PatchFailure.MALFORMED, "lines count from 1"),
    (change("a.py", " one\n two\n"), PatchFailure.MALFORMED, "changes nothing"),
    (change("a.py", "xone\n-two\n+2\n"), PatchFailure.MALFORMED, "start with ' ', '-' or '+'"),
    (change("a.py", " one\n", "@@ one @@"), PatchFailure.MALFORMED, "hunk's header"),
    (change("z.py", " one\n-two\n+2\n"), PatchFailure.NOT_FOUND, "no such file"),
    (change("b", " one\n-two\n+2\n"), PatchFailure.NOT_A_FILE, "is a directory"),
    ("--- a/a.py\n+++ a/a.py\n@@ -1 +1 @@\n-one\n+1\n", PatchFailure.MALFORMED, "start with 'a/'"),
    ("--- a.py\n+++ z.py\n@@ -1 +1 @@\n-one\n+1\n", PatchFailure.MALFORMED, "which file"),
    ("--- a/a.py\n+++ b/z.py\n@@ -1 +1 @@\n-one\n+1\n", PatchFailure.MALFORMED, "rename from"),
    ("--- /dev/null\n+++ d/z.py\n@@ -0,0 +1 @@\n+1\n", PatchFailure.MALFORMED, "which file"),
    (
        "diff --git a/a.py b/z.py\n--- a/a.py\n+++ b/z.py\n@@ -1 +1 @@\n-one\n+1\n",
        PatchFailure.MALFORMED,
        "no rename",
    ),
    (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/z.py\n@@ -1 +1 @@\n-one\n+1\n",
        PatchFailure.MALFORMED,
        "differ from",
    ),
    (
        "diff --git a/a.py b/a.py\n--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+1\n",
        PatchFailure.MALFORMED,
        "differ from",
    ),
    (
        "--- a/a.py\t1970-01-01 00:00:00 +0000\n+++ b/a.py\t2024-05-01 00:00:00 +0000\n"
        "@@ -0,0 +1 @@\n+x\n",
        PatchFailure.ALREADY_EXISTS,
        "is there already",
    ),
    ("diff --git a/a.py b/a.py\n", PatchFailure.MALFORMED, "not a unified diff"),
    ("diff --git a/a.py b/a.py\nindex 1..2 100644\n", PatchFailure.MALFORMED, "no hunk"),
    ("diff --git a/a.py b/a.py\nold mode 100644\n", PatchFailure.MALFORMED, "no hunk"),
    (
        "diff --git a/a.py b/a.py\nold mode 100644\nnew mode 120000\n",
        PatchFailure.BAD_MODE,
        "becomes a link",
    ),
    (
        "diff --git a/a.py b/a.py\nindex 1..2 120000\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n"
        "-one\n+1\n",
        PatchFailure.NOT_A_FILE,
        "not a link",
    ),
    (change("a.py", " one\n\\begin\n"), PatchFailure.MALFORMED, "start with ' ', '-' or '+'"),
    ("--- /etc/x\n+++ b/x\n@@ -1 +1 @@\n-o\n+1\n", PatchFailure.PATH_ABSOLUTE, "absolute"),
    (change("../x", " one\n-two\n+2\n"), PatchFailure.PATH_ESCAPES, "'..'"),
    (change(".git/config", " one\n-two\n+2\n"), PatchFailure.PATH_GIT, "git's own"),
    (
        "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n",
        PatchFailure.ALREADY_EXISTS,
        "is there already",
    ),
    (
        "--- /dev/null\n+++ b/a.py/x\n@@ -0,0 +1 @@\n+x\n",
        PatchFailure.NOT_A_FILE,
        "is a file, not a directory",
    ),
    (
        "diff --git a/x b/x\nnew file mode 104755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n",
        PatchFailure.BAD_MODE,
        "known: 100644",
    ),
    ("diff --git a/x b/x\nGIT binary patch\nliteral 0\n", PatchFailure.BINARY, "binary"),
    (
        "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n"
        "\\ No newline at end of file\n",
        PatchFailure.LINK_ESCAPES,
        "leads out",
    ),
    (
        change("a.py", " one\n-two\n+2\n") + change("a.py", " one\n-two\n+2\n"),
        PatchFailure.DUPLICATE_PATH,
        "twice",
    ),
    (MOVE.format("rename", "y") + MOVE.format("rename", "z"), PatchFailure.DUPLICATE_PATH, "twice"),
    (
        MOVE.format("copy", "y") + "diff --git a/a.py b/a.py\nnew file mode 100644\n",
        PatchFailure.ALREADY_EXISTS,
        "is there already",
    ),
    (
        change("a.py", "-three\n+3\n", "@@ -3 +3 @@") + "@@ -1 +1 @@\n-one\n+1\n",
        PatchFailure.MALFORMED,
        "out of order",
    ),
    (
        "--- a/b/c.txt\n+++ /dev/null\n@@ -0,0 +0,0 @@\n",
        PatchFailure.MALFORMED,
        "changes nothing",
    ),
]


def test_what_does_not_fit_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for text, reason, words in REFUSED:
        with subtests.test(text=text):
            with pytest.raises(PatchError) as caught:
                applied(BASE, text)
            assert caught.value.reason is reason, str(caught.value)
            assert words in str(caught.value)


def test_nothing_is_applied_when_one_file_of_two_does_not_fit() -> None:
    good, bad = change("a.py", " one\n-two\n+2\n"), change("b/c.txt", " no\n-such\n+line\n")
    assert reason_of(BASE, good + bad) is PatchFailure.CONTEXT_MISMATCH
    assert reason_of(BASE, bad + good) is PatchFailure.CONTEXT_MISMATCH


def test_lines_that_stand_twice_elsewhere_are_called_ambiguous() -> None:
    tree = {"a": b"x\ny\nx\nz\nx\n"}
    assert reason_of(tree, change("a", "-x\n+1\n", "@@ -2 +2 @@")) is PatchFailure.CONTEXT_AMBIGUOUS


def test_a_file_below_a_link_is_refused() -> None:
    tree = {"out": FileEntry(link_target="b"), "b/c": FileEntry(content=b"")}
    text = "--- /dev/null\n+++ b/out/x\n@@ -0,0 +1 @@\n+x\n"
    with pytest.raises(PatchError) as caught:
        apply_patches(tree, parse_diff(text))
    assert caught.value.reason is PatchFailure.PATH_ESCAPES


def test_a_file_becomes_a_link_and_a_link_a_file() -> None:
    file, link = {"l": FileEntry(content=b"x\n")}, {"l": FileEntry(link_target="target")}
    for before, after in ((file, link), (link, file)):
        text = make_diff(before, after)
        assert update_tree(before, apply_patches(before, parse_diff(text))) == after


def test_contents_with_nul_bytes_cannot_be_a_diff() -> None:
    with pytest.raises(PatchError, match="binary file"):
        make_diff({}, {"x": b"\0"})


contents = st.one_of(
    st.lists(st.sampled_from([b"a", b"b", b"", b" c", b"-d", b"\xff"]), max_size=12).map(
        lambda lines: b"".join(line + b"\n" for line in lines)
    ),
    st.sampled_from([b"", b"a", b"a\nb", b"\n", b"a\r\nb\r\n", b"\\ x\n", b"@@ -1 +1 @@\n"]),
)
files = st.one_of(
    st.builds(FileEntry, content=contents, is_executable=st.booleans()),
    st.builds(FileEntry, link_target=st.sampled_from(["a.py", "d", "b c.txt"])),
)
names = st.sampled_from(
    ["a.py", "b c.txt", 'q"uote', "d/e/f", "d/g", "caf\u00e9", "tab\tbed", "x\udcff"]
)
trees = st.dictionaries(names, files, max_size=5)


@given(before=trees, after=trees)
def test_a_made_diff_applies_to_what_it_was_made_from(
    before: dict[str, FileEntry], after: dict[str, FileEntry]
) -> None:
    text = make_diff(before, after)
    assert text == make_diff(dict(reversed(before.items())), dict(reversed(after.items())))
    if before == after:
        assert text == ""
    else:
        assert update_tree(before, apply_patches(before, parse_diff(text))) == as_tree(after)


@given(text=st.text(st.sampled_from("ab \n+-@,/1\\"), max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    start = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n"
    for candidate in (text, start + text):
        try:
            apply_patches({"a": b"a\n"}, parse_diff(candidate))
        except PatchError as e:
            assert str(e)


def test_large_files_are_compared_in_reasonable_time() -> None:
    before = b"".join(b"line %d\n" % i for i in range(20_000))
    after = b"".join(b"other %d\n" % i for i in range(20_000))
    text = make_diff({"a": before}, {"a": after})
    assert (
        update_tree({"a": before}, apply_patches({"a": before}, parse_diff(text)))["a"].content
        == after
    )


def test_a_patch_of_too_many_files_is_refused_soon_and_half_a_character_is_malformed():
    part = "--- /dev/null\n+++ b/many/%d.txt\n@@ -0,0 +1 @@\n+x\n"
    with pytest.raises(PatchError, match="more than 10000 files are changed"):
        parse_diff("".join(part % i for i in range(10_001)))
    with pytest.raises(PatchError, match="half a character"):
        parse_diff(part % 1 + "\ud800")


def test_a_link_is_changed_by_what_names_its_target_alone() -> None:
    tree = {"l": FileEntry(link_target="a"), "a": b"x\n"}
    header = "diff --git a/l b/l\n--- a/l\n+++ b/l\n@@ -1 +1 @@\n"
    end = "\\ No newline at end of file\n"
    text = f"{header}-a\n{end}+d\n{end}"
    assert update_tree(tree, apply_patches(tree, parse_diff(text)))["l"].link_target == "d"
    with pytest.raises(PatchError, match="is a link, not a file"):
        apply_patches(tree, parse_diff(header + "-x\n+y\n"))
    with pytest.raises(PatchError, match="leads out"):
        apply_patches(tree, parse_diff(f"{header}-a\n{end}+/etc\n{end}"), left_out={})


def test_few_lines_that_make_much_of_a_large_file_are_refused() -> None:
    copy = "diff --git a/a b/%d\nsimilarity index 100%%\ncopy from a\ncopy to %d\n"
    text = "".join(copy % (i, i) for i in range(300))
    with pytest.raises(PatchError) as caught:
        apply_patches({"a": bytes(1 << 20)}, parse_diff(text))
    assert caught.value.reason is PatchFailure.TOO_LARGE
