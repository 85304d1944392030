"""Edits change what the tools show: through links, with the file's modes and line ends; names and
matches are one line each; commands of any size run.

Not here: what else the tools do (`test_swe_tools.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tool_play
from tool_play import Tools, with_tools

from katgym.sandbox.layer import FileEntry


@pytest.fixture(autouse=True, params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_play, "kind", request.param)


BODY = b"x = 1\ny = 2\n"


def envelope(path: str, *lines: str) -> str:
    return "\n".join(["*** Begin Patch", f"*** Update File: {path}", *lines, "*** End Patch"])


def diff(path: str, *lines: str) -> str:
    old = sum(line[0] in " -" for line in lines)
    new = sum(line[0] in " +" for line in lines)
    head = f"--- a/{path}\n+++ b/{path}\n@@ -1,{old} +1,{new} @@\n"
    return head + "".join(f"{line}\n" for line in lines)


EDITS: dict[str, Callable[[str], dict[str, Any]]] = {
    "str_replace": lambda path: {"path": path, "old": "x = 1", "new": "x = 3"},
    "insert": lambda path: {"path": path, "line": 0, "text": "x = 3\n"},
    "apply_patch": lambda path: {"patch": envelope(path, "-x = 1", "+x = 3", " y = 2")},
    "apply_patch diff": lambda path: {"patch": diff(path, "-x = 1", "+x = 3", " y = 2")},
}


def test_an_edit_through_a_link_changes_the_file_and_keeps_link_and_mode() -> None:
    async def check(tools: Tools) -> None:
        await tools.shell(
            "ln -s real.py link.py; mkdir sub; ln -s ../real.py sub/back.py; ln -s sub/back.py"
            " chain.py; ln -s /workspace/real.py absolute.py; ln -s sub folder; cp -P sub/back.py"
            " 'sub/a b'; ln -s ../real.py sub/there; echo > /tmp/t; ln -s t /tmp/near"
        )
        links = ["link.py", "chain.py", "absolute.py", "folder/there", "sub/a b"]
        before = await tools.shell("find . /tmp -type l -printf '%p %l\n' | sort")
        cases = [(link, "str_replace") for link in links] + [("chain.py", edit) for edit in EDITS]
        for link, edit in cases:
            await tools.workspace.sandbox.write("real.py", BODY, mode=0o640)
            assert await tools("view", path=link) == "1\tx = 1\n2\ty = 2"
            await tools(edit.split()[0], **EDITS[edit](link))
            assert (await tools.content("real.py")).startswith(b"x = 3\n"), (link, edit)
            assert await tools.shell("stat -c %a real.py") == "640\n", (link, edit)
        await tools("str_replace", path="/tmp/near", old="\n", new="t\n")
        assert await tools.content("/tmp/t") == b"t\n"
        assert await tools.shell("find . /tmp -type l -printf '%p %l\n' | sort") == before

    with_tools({"real.py": BODY}, check)


def test_a_link_to_nothing_or_out_is_refused_and_told() -> None:
    async def check(tools: Tools) -> None:
        await tools.shell(
            "ln -s /etc/passwd out.txt; ln -s ../../etc/passwd up.txt; ln -s circle circle; ln -s"
            " missing.py gone.py; ln -s no/such/file.py below_gone.py; ln -s out.txt far.txt; ln -s"
            " nowhere folder; touch /tmp/t; ln -s /tmp/t tmp.txt"
        )
        state = "find . -printf '%p %l\n' | sort; md5sum /etc/passwd"
        before = await tools.shell(state)
        out = "which leads out of the repository"
        told = {
            "out.txt": out, "up.txt": out, "far.txt": out, "tmp.txt": out,
            "circle": "where nothing is", "gone.py": "where nothing is",
            "below_gone.py": "where nothing is",
        }  # fmt: skip
        cases = [(link, "str_replace") for link in told]
        cases += [(link, edit) for link in ("out.txt", "gone.py") for edit in EDITS]
        for link, edit in cases:
            refusal = await tools.refused(edit.split()[0], **EDITS[edit](link))
            assert refusal.startswith(f"{link} is a symbolic link to '"), (link, edit, refusal)
            assert refusal.endswith(told[link]), (link, edit, refusal)
        for link in ("far.txt", "circle"):
            assert told[link] in await tools.refused("view", path=link)
            assert told[link] in await tools.refused("create", path=link, content="")
        dangling = "folder is a symbolic link to nothing"
        new = "--- /dev/null\n+++ b/folder/new\n@@ -0,0 +1 @@\n+x\n"
        assert dangling in await tools.refused("create", path="folder/new", content="")
        assert dangling in await tools.refused("apply_patch", patch=new)
        assert await tools.shell(state) == before

    with_tools({"real.py": BODY}, check)


def test_a_patch_may_be_about_a_link_itself() -> None:
    async def check(tools: Tools) -> None:
        no_newline = "\\ No newline at end of file"
        lines = ["-real.py", no_newline, "+other.py", no_newline]
        head = "--- a/link.py\n+++ b/link.py\n@@ -1 +1 @@\n"
        await tools("apply_patch", patch=head + "\n".join(lines) + "\n")
        assert await tools.shell("readlink link.py") == "other.py\n"
        both = diff("link.py", "-x = 1", "+x = 3", " y = 2")
        await tools.shell("ln -sfn real.py link.py")
        twice = both + diff("real.py", "-x = 1", "+x = 4", " y = 2")
        assert "in the patch twice" in await tools.refused("apply_patch", patch=twice)
        assert await tools.content("real.py") == BODY
        deleted = "*** Begin Patch\n*** Delete File: link.py\n*** End Patch"
        assert await tools("apply_patch", patch=deleted) == "Applied:\nD link.py"
        assert await tools.content("real.py") == BODY

    with_tools({"real.py": BODY, "link.py": FileEntry(link_target="real.py")}, check)


@pytest.mark.parametrize("mode", ["600", "755", "444", "711"])
def test_every_edit_keeps_the_mode_and_the_other_names_of_a_file(mode: str) -> None:
    async def check(tools: Tools) -> None:
        for edit, arguments in EDITS.items():
            for names in ("real.py", "real.py other.py"):
                await tools.shell(
                    f"rm -f *.py; printf 'x = 1\ny = 2\n' > real.py; chmod {mode} real.py;"
                    f" for n in {names}; do [ $n = real.py ] || ln real.py $n; done"
                )
                await tools(edit.split()[0], **arguments("real.py"))
                told = await tools.shell(f"head -qn1 {names}; stat -c %a {names}")
                num = len(names.split())
                assert told == "x = 3\n" * num + f"{mode}\n" * num, (edit, names)
        await tools.shell(f"rm -f *.py; printf 'x = 1\n' > a.py; chmod {mode} a.py")
        moved = envelope("a.py", "*** Move to: b.py", "-x = 1", "+x = 2")
        await tools("apply_patch", patch=moved)
        assert await tools.shell("stat -c %a b.py") == f"{mode}\n"

    with_tools({}, check)


def test_a_patch_changes_whether_a_file_is_executable_and_no_other_bit() -> None:
    async def check(tools: Tools) -> None:
        for before, after in {"600": "700", "644": "755", "755": "644", "750": "640"}.items():
            await tools.shell(f"chmod {before} a.sh")
            modes = ("100755", "100644") if before[0] == "7" else ("100644", "100755")
            patch = "diff --git a/a.sh b/a.sh\nold mode {}\nnew mode {}\n".format(*modes)
            await tools("apply_patch", patch=patch)
            assert await tools.shell("stat -c %a a.sh") == f"{after}\n"
        await tools.shell("chmod 600 a.sh; mkdir -p taken/x")
        blocked = "--- /dev/null\n+++ b/taken/x\n@@ -0,0 +1 @@\n+x\n"
        await tools.refused("apply_patch", patch=diff("a.sh", "-1", "+2") + blocked)
        assert await tools.shell("stat -c %a a.sh; cat a.sh") == "600\n1\n"

    with_tools({"a.sh": b"1\n"}, check)


# ---- line ends

ENDS = {
    "LF": b"\n",
    "CRLF": b"\r\n",
    "CR": b"\r",
}
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "end", ["CRLF", *(pytest.param(end, marks=pytest.mark.slow) for end in ("LF", "CR"))]
)
def test_lines_are_edited_as_they_are_shown_and_end_as_the_file_does(end: str) -> None:
    async def check(tools: Tools) -> None:
        async def run(name: str, expected: str, **arguments: str | int) -> None:
            for mark, last in ((b"", e), (MARK, b"")):
                body = b"a" + e + b"b" + e + b"c" + last
                await tools.workspace.sandbox.write("f", mark + body)
                assert "\\x0d" not in await tools(name, **arguments)
                is_kept = last or expected.endswith("|")
                ended = expected.removesuffix("|") + ("\n" if is_kept else "")
                content = mark + ended.encode().replace(b"\n", e)
                assert await tools.content("f") == content, (name, arguments, mark, last)

        e = ENDS[end]
        for mark in (b"", MARK):
            await tools.workspace.sandbox.write("f", mark + b"a" + e + b"b" + e)
            assert await tools("view", path="f") == "1\ta\n2\tb"
        await run("str_replace", "a\nB\nd\nc", path="f", old="b", new="B\nd")
        await run("str_replace", "x\nz", path="f", old="a\nb\nc", new="x\nz")
        await run("str_replace", "a\nbb\nc", path="f", old="a\nb", new="a\nbb")
        await run("str_replace", "ab\nc", path="f", old="a\n", new="a")
        await run("str_replace", "a\n\nb\nc", path="f", old="\nb", new="\n\nb")
        await run("insert", "n\na\nb\nc", path="f", line=0, text="n")
        await run("insert", "a\nn\nm\nb\nc", path="f", line=1, text="n\r\nm\n")
        await run("insert", "a\nb\nc\nn|", path="f", line=3, text="n")
        await run("apply_patch", "a\nB\nd\nc", patch=envelope("f", " a", "-b", "+B", "+d"))
        await run("apply_patch", "a\nb\nc\nd", patch=envelope("f", "@@", "+d"))
        await run("apply_patch", "a\nn\nb\nc", patch=envelope("f", "@@ a", "+n"))
        await run("apply_patch", "a\nB\nd\nc", patch=envelope("f", "-b", "+B", "+d"))
        await run("apply_patch", "A\na\nb\nc", patch=diff("f", "+A", " a", " b"))
        crlf = envelope("f", " a", "-b", "+B").replace("\n", "\r\n")
        await run("apply_patch", "a\nB\nc", patch=crlf)
        await run("apply_patch", "a\nB\nc", patch=diff("f", " a", "-b", "+B").replace("\n", "\r\n"))

    with_tools({}, check)


def test_an_edit_of_a_mixed_file_changes_no_other_line() -> None:
    mixed = b"a\r\na\nb\r\n\x0cc\rd\ne\xe2\x80\xa8f\n\xc2\x85\xffg\r\nh"

    async def check(tools: Tools) -> None:
        async def run(name: str, expected: bytes, **arguments: str | int) -> None:
            await tools.workspace.sandbox.write("f", mixed)
            await tools(name, **arguments)
            assert await tools.content("f") == expected, (name, arguments)

        await tools.workspace.sandbox.write("f", mixed)
        shown = ["a", "a", "b", "\\x0cc\\x0dd", "e\\u2028f", "\\x85?g", "h"]
        numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(shown, 1))
        assert await tools("view", path="f") == numbered
        await run("str_replace", mixed.replace(b"a\nb", b"x\ny"), path="f", old="a\nb", new="x\ny")
        await run("str_replace", mixed.replace(b"e", b"E"), path="f", old="e", new="E")
        await run("insert", b"a\r\n" + mixed, path="f", line=0, text="a")
        await run("insert", mixed.replace(b"\nb", b"\na\r\nb"), path="f", line=2, text="a")
        patched = b"a\r\nA\nN\r\n" + mixed[5:]
        await run("apply_patch", patched, patch=diff("f", " a", "-a", "+A", "+N", " b"))
        await run("apply_patch", patched, patch=envelope("f", " a", "-a", "+A", "+N", " b"))

    with_tools({}, check)


def test_line_ends_that_are_written_out_are_taken_byte_for_byte() -> None:
    async def check(tools: Tools) -> None:
        cases = [
            ("str_replace", {"path": "f", "old": "a\r\nb", "new": "a\nb"}, b"a\nb\r\nc\r\n"),
            ("str_replace", {"path": "f", "old": "b", "new": "b\r\nd\ne"}, None),
            ("apply_patch", {"patch": diff("f", " a\r", "-b\r", "+B\r")}, b"a\r\nB\r\nc\r\n"),
            ("apply_patch", {"patch": envelope("f", "-b\r", "+b")}, b"a\r\nb\nc\r\n"),
        ]
        for name, arguments, expected in cases:
            await tools.workspace.sandbox.write("f", b"a\r\nb\r\nc\r\n")
            await tools(name, **arguments)
            found = await tools.content("f")
            assert found == (expected or b"a\r\nb\r\nd\r\ne\r\nc\r\n"), (name, arguments)
        await tools.workspace.sandbox.write("f", b"a\nb\n")
        await tools("str_replace", path="f", old="a\r\nb", new="x\r\ny")  # not there so: as shown
        assert await tools.content("f") == b"x\ny\n"
        await tools.workspace.sandbox.write("f", b"one\rtwo\nthree\n")
        told = await tools.refused("str_replace", path="f", old="one\\x0dtwo", new="")
        assert "not the escape" in told

    with_tools({}, check)


# ---- names and matches, one line each


def test_an_entry_is_one_line_whatever_is_in_its_name_or_text() -> None:
    async def check(tools: Tools) -> None:
        await tools.shell(
            "cd d; printf 'hit\\342\\200\\250x\\nhit\\342\\200\\251\\nhit\\r\\n' > t;"
            " printf 'hit\\302\\205' >> t;"
            " touch $'a\\nb' $'c\\rd' $'e\\342\\200\\250f' $'g\\tg'; echo hit > $'i\\nj'; ln -s . l"
        )
        names = ["a\\nb", "c\\x0dd", "e\\u2028f", "g\tg", "i\\nj", "l", "t"]
        assert (await tools("view", path="d")).splitlines() == names
        assert (await tools("view", path="d/l")).splitlines() == names
        found = (await tools("find", name="?*", path="d")).splitlines()
        assert found == ["d", *(f"d/{name}" for name in names)]
        assert sorted((await tools("grep", pattern="hit", path="d")).splitlines()) == [
            "d/i\\nj:1:hit", "d/t:1:hit\\u2028x", "d/t:2:hit\\u2029", "d/t:3:hit", "d/t:4:hit\\x85",
        ]  # fmt: skip
        await tools.workspace.sandbox.write("e", b"a$\r\nb\r\n\r\na$b\n")
        for pattern, numbers in {
            "[$b]$": "124", "^$": "3", r"a\$": "14", "[[:alpha:]$]$": "124", "a[$]$": "1",
            "(a.$|^b$)": "12", "[]$]$": "1",
        }.items():  # fmt: skip
            matched = re.findall("e:([0-9]):", await tools("grep", pattern=pattern, path="e"))
            assert "".join(matched) == numbers, pattern
        patch = '--- "a/d/i\\nj"\n+++ "b/d/i\\nj"\n@@ -1 +1 @@\n-hit\n+hot\n'
        assert await tools("apply_patch", patch=patch) == "Applied:\nM d/i\\nj"
        await tools("create", path="n", content="a\u2028b\x0cc\n")
        await tools.shell("yes 'x long line' | head -40000 > d/many")
        lines = (await tools("grep", pattern="long", path="d")).splitlines()
        assert lines[:200] == [f"d/many:{n}:x long line" for n in range(1, 201)]
        assert len(lines) == 201 and lines[200].endswith("search for less]")

    with_tools({"d/t": b""}, check)


# ---- commands


def test_bash_takes_long_commands_up_to_its_limit() -> None:
    async def check(tools: Tools) -> None:
        for size in (200_000, 1_000_000, 4_000_000):
            body = ("é '\"$x`y\\\n" * (size // 11))[: size // 2]
            command = f"cat > big <<'EOF'\n{body}\nEOF\nfalse"
            assert await tools("bash", command=command) == "[exit code 1]"
            assert await tools.content("big") == f"{body}\n".encode()
        told = await tools.refused("bash", command="x" * ((4 << 20) + 1))
        assert "at most 4194304 bytes" in told and "in parts" in told

    with_tools({}, check)


def test_what_bash_runs_has_no_input_and_errors_name_the_commands_own_lines() -> None:
    cases = {
        "cat; echo after": "after\n[exit code 0]",
        "read x; echo \"<$x> $?\"; echo next": "<> 1\nnext\n[exit code 0]",
        "[ -p /dev/stdin ] || wc -c": "0\n[exit code 0]",
        "python3 -c 'import sys; print(repr(sys.stdin.read()))'": "''\n[exit code 0]",
        "set -e\nfalse\necho no": "[exit code 1]",
        "exit 3\necho no": "[exit code 3]",
        "echo a\\\n": "a\n[exit code 0]",
        "cat <<'E'\n  x\n\nE\n\n": "  x\n\n[exit code 0]",
        "sleep 1000 & echo begun": "begun\n[exit code 0]",
        "true\nabsent": "bash: line 2: absent: command not found\n[exit code 127]",
        "": "[exit code 0]",
    }  # fmt: skip

    async def check(tools: Tools) -> None:
        assert {c: await tools("bash", command=c) for c in cases} == cases

    with_tools({}, check)
