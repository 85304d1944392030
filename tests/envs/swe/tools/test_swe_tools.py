"""The tools of `katgym/SWE-v0` in a real sandbox."""

from __future__ import annotations

import asyncio
import functools
import re
from pathlib import Path

import pytest
import tool_play
from tool_play import Tools

from katgym.sandbox import SandboxSpec, layer_store, shared_backend
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.patching import PatchFailure
from katgym_envs.swe.tools.orphan_commit import orphan_commit_layer

FILES: dict[str, bytes | FileEntry] = {
    "pkg/a.py": b"def f(x):\n    return x\n\n\ndef g(x):\n    return x\n",
    "run.sh": FileEntry(content=b"echo old\n", is_executable=True),
    "link.py": FileEntry(link_target="pkg/a.py"),
    "latin.txt": b"caf\xe9\nend",
    "data.bin": b"\0\1\2",
    "test_a.py": b"from pkg.a import f\n\ndef test_f():\n    assert f(1) == 1\n",
}


with_tools = functools.partial(tool_play.with_tools, FILES)


def test_bash_keeps_its_directory_and_exports_and_always_shows_the_exit_code() -> None:
    async def check(tools: Tools) -> None:
        assert await tools("bash", command="pwd") == "/workspace\n[exit code 0]"
        assert await tools("bash", command="cd pkg && export A='x y' B=$'1\n2'") == "[exit code 0]"
        told = await tools("bash", command='pwd; echo "$A-$B"; false')
        assert told == "/workspace/pkg\nx y-1\n2\n[exit code 1]"
        assert await tools("bash", command="exit 7") == "[exit code 7]"
        assert (await tools("bash", command="pwd")).startswith("/workspace/pkg\n")
        assert await tools("bash", command="unset A; echo ${A-none}") == "none\n[exit code 0]"
        assert await tools("bash", command="echo ${A-none}") == "none\n[exit code 0]"

    with_tools(check)


def test_bash_survives_commands_that_end_the_shell_or_its_directory() -> None:
    async def check(tools: Tools) -> None:
        assert "signal 9" in await tools("bash", command="kill -9 $$")
        assert "[exit code 1]" in await tools("bash", command="exec false")
        assert "syntax error" in await tools("bash", command="if then")
        await tools("bash", command="mkdir gone && cd gone")
        await tools("bash", command="(cd / && rmdir /workspace/gone)")
        assert "is gone; back in /workspace" in await tools.refused("bash", command="pwd")
        assert (await tools("bash", command="pwd")).startswith("/workspace\n")
        await tools("bash", command="export PATH=/nowhere")
        assert "not found" in await tools("bash", command="ls")
        assert "[exit code 0]" in await tools("bash", command="export PATH=/usr/bin:/bin")
        assert "a.py" in await tools("bash", command="ls pkg")

    with_tools(check)


def test_bash_stops_in_time_and_shows_both_ends_of_long_output() -> None:
    async def check(tools: Tools) -> None:
        told = await tools("bash", command="echo begun; sleep 3600", timeout_s=1)
        assert re.search(r"\[stopped after \d+ s \(wall_s\)\]", told)
        told = await tools("bash", command="seq 100000")
        assert told.startswith("1\n2\n") and told.endswith("100000\n[exit code 0]")
        assert "left out]" in told and len(told) < 17_000
        assert "\\x1b[2J" in await tools("bash", command="printf '\\033[2J'")
        assert "from 1 to 600" in await tools.refused("bash", command="true", timeout_s=0)

    with_tools(check)


def test_view_numbers_lines_and_lists_directories() -> None:
    async def check(tools: Tools) -> None:
        assert await tools("view", path="pkg/a.py", start_line=5, end_line=9) == (
            "5\tdef g(x):\n6\t    return x"
        )
        assert await tools("view", path="/workspace/run.sh") == "1\techo old"
        assert (await tools("view", path=".")).splitlines() == [
            "data.bin", "latin.txt", "link.py", "pkg/", "pkg/a.py", "run.sh", "test_a.py",
        ]  # fmt: skip
        assert "no such file" in await tools.refused("view", path="none.py")
        assert "has 6 lines" in await tools.refused("view", path="pkg/a.py", start_line=7)
        assert "binary file of 3 bytes" in await tools.refused("view", path="data.bin")
        assert "not a path" in await tools.refused("view", path="")
        await tools("bash", command="seq 1000 > many")
        assert (await tools("view", path="many")).endswith("400\t400\n[600 more lines]")

    with_tools(check)


def test_str_replace_wants_the_text_exactly_once() -> None:
    async def check(tools: Tools) -> None:
        told = await tools("str_replace", path="pkg/a.py", old="g(x):\n", new="g(x, y):\n")
        assert "5\tdef g(x, y):" in told
        twice = await tools.refused("str_replace", path="pkg/a.py", old="return x", new="")
        assert "occurs 2 times" in twice and "lines 2, 6" in twice
        assert "does not occur" in await tools.refused(
            "str_replace", path="pkg/a.py", old="nothing", new=""
        )
        assert "the same" in await tools.refused("str_replace", path="run.sh", old="old", new="old")
        assert "use insert" in await tools.refused("str_replace", path="run.sh", old="", new="x")
        assert tools.workspace.failures == {
            PatchFailure.CONTEXT_AMBIGUOUS: 1,
            PatchFailure.CONTEXT_MISMATCH: 1,
            PatchFailure.EMPTY: 1,
        }
        await tools("str_replace", path="run.sh", old="old", new="new")
        assert "new" in await tools("bash", command="./run.sh")
        await tools("str_replace", path="latin.txt", old="end", new="END")
        assert await tools.content("latin.txt") == b"caf\xe9\nEND"

    with_tools(check)


def test_insert_puts_whole_lines_after_a_line() -> None:
    async def check(tools: Tools) -> None:
        await tools("insert", path="pkg/a.py", line=0, text="import os\n")
        assert (await tools.content("pkg/a.py")).startswith(b"import os\ndef f(x):\n")
        await tools("insert", path="latin.txt", line=2, text="more")
        assert await tools.content("latin.txt") == b"caf\xe9\nend\nmore\n"
        assert "has 7 lines, got line 8" in await tools.refused(
            "insert", path="pkg/a.py", line=8, text="x"
        )
        assert "empty" in await tools.refused("insert", path="pkg/a.py", line=1, text="")

    with_tools(check)


def test_create_makes_new_files_only() -> None:
    async def check(tools: Tools) -> None:
        assert "(1 lines)" in await tools("create", path="new/deep/b.py", content="x = 1\n")
        assert await tools.content("new/deep/b.py") == b"x = 1\n"
        assert "is there already" in await tools.refused("create", path="run.sh", content="")
        assert "a file" in await tools.refused("create", path="run.sh/x", content="")

    with_tools(check)


def test_apply_patch_is_atomic_over_files_and_keeps_modes() -> None:
    async def check(tools: Tools) -> None:
        good = "--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-echo old\n+echo new\n"
        bad = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-def h(x):\n+def i(x):\n"
        told = await tools.refused("apply_patch", patch=good + bad)
        assert "nothing was changed" in told and "line 1 is" in told
        assert await tools.content("run.sh") == b"echo old\n"
        told = await tools(
            "apply_patch",
            patch=good + "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x\n"
            "--- a/data.bin\n+++ /dev/null\n@@ -1 +0,0 @@\n-\0\1\2\n\\ No newline at end of file\n",
        )
        assert told == "Applied:\nD data.bin\nA n.py\nM run.sh"
        assert "new" in await tools("bash", command="./run.sh; ls data.bin")
        blocked = "--- /dev/null\n+++ b/run.sh/x\n@@ -0,0 +1 @@\n+x\n"
        await tools.refused("apply_patch", patch=blocked)
        assert "new" in (await tools.content("run.sh")).decode()
        assert tools.workspace.failures[PatchFailure.CONTEXT_MISMATCH] == 1

    with_tools(check)


def test_a_write_that_fails_takes_back_what_was_written() -> None:
    async def check(tools: Tools) -> None:
        await tools("bash", command="mkdir -p taken/x")
        patch = (
            "--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-echo old\n+echo new\n"
            "--- /dev/null\n+++ b/taken/x\n@@ -0,0 +1 @@\n+x\n"
        )
        assert "is a directory" in await tools.refused("apply_patch", patch=patch)
        assert await tools.content("run.sh") == b"echo old\n"

    with_tools(check)


def test_grep_and_find_list_what_is_there() -> None:
    async def check(tools: Tools) -> None:
        assert await tools("grep", pattern=r"def [fg]\(", path="pkg") == (
            "pkg/a.py:1:def f(x):\npkg/a.py:5:def g(x):"
        )
        assert await tools("grep", pattern="DEF F", ignore_case=True, glob="*.py", path="pkg")
        assert await tools("grep", pattern="no such text") == "[no match]"
        assert "Unmatched" in await tools.refused("grep", pattern="(")
        assert "No such file" in await tools.refused("grep", pattern="x", path="nowhere")
        assert await tools("find", name="*.py") == "link.py\npkg/a.py\ntest_a.py"
        assert await tools("find", name="*.rs") == "[nothing found]"
        await tools("bash", command="seq 1000 > many; touch -- -n")
        assert "[800 more lines" in await tools("grep", pattern=".", path="many")
        assert await tools("grep", pattern="^7$", path="many") == "many:7:7"
        assert await tools("find", name="-n") == "-n"

    with_tools(check)


def test_run_tests_shows_what_pytest_says() -> None:
    async def check(tools: Tools) -> None:
        assert "1 passed" in await tools("run_tests")
        await tools("str_replace", path="test_a.py", old="== 1", new="== 2")
        told = await tools("run_tests", tests=["test_a.py::test_f"])
        assert "assert 1 == 2" in told and told.endswith("[exit code 1]")
        assert "not found" in await tools("run_tests", tests=["none.py"])
        assert "is a path or a node id" in await tools.refused("run_tests", tests=["--pdb"])

    with_tools(check, python=ensure_venv(("pytest==9.2.0",)), env={"PYTHONPATH": "/workspace"})


def test_no_tool_reads_or_writes_outside_of_the_sandbox(tmp_path: Path) -> None:
    async def check(tools: Tools) -> None:
        secret = tmp_path / "secret"
        secret.write_text("x")
        await tools("bash", command=f"ln -s {secret} out; ln -s / root")
        for path in (str(secret), "out", "root/etc/shadow", "../../etc/shadow"):
            assert await tools.refused("view", path=path)
        assert await tools.refused("create", path="/etc/new", content="x")
        assert await tools.refused("create", path="../outside", content="x")

    with_tools(check)


def test_the_workspace_has_one_commit_and_no_history() -> None:
    async def go() -> None:
        sandboxes = shared_backend("local")
        layer = layer_store().add_files(FILES)
        git = await orphan_commit_layer(sandboxes, layer)
        assert git is not None
        assert await orphan_commit_layer(sandboxes, layer) == git
        async with await sandboxes.create(SandboxSpec(layers=(layer, git))) as sandbox:
            told = await sandbox.exec("git rev-list --all | wc -l; git status --short; git branch")
            assert told.stdout == b"1\n* main\n", told
            await sandbox.exec("echo x >> run.sh")
            shown = await sandbox.exec("git diff --stat; git fsck --lost-found")
            assert b"run.sh | 1 +" in shown.stdout
            names = await sandbox.exec("find .git -name 'pack*' -o -name 'logs' -o -name hooks")
            assert b"hooks" not in names.stdout

    asyncio.run(go())


ODD_CALLS = {
    "bash": {"command": "echo {}"},
    "grep": {"pattern": "{}"},
    "grep below": {"pattern": "x", "path": "{}"},
    "grep in": {"pattern": "x", "glob": "{}"},
    "find": {"name": "{}"},
    "find below": {"path": "{}"},
    "view": {"path": "{}"},
    "create": {"path": "{}", "content": ""},
    "str_replace": {"path": "{}", "old": "a", "new": "b"},
    "insert": {"path": "{}", "line": 0, "text": "a"},
    "apply_patch": {"patch": "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+x\n"},
    "apply_patch envelope": {"patch": "*** Begin Patch\n*** Add File: {}\n+x\n*** End Patch"},
    "run_tests": {"tests": ["{}"]},
}
"""Tool (and a word that tells two calls apart) -> arguments with a place for what is odd."""


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
def test_no_tool_takes_nul_or_lone_surrogates_and_the_sandbox_lives_on(odd: str) -> None:
    async def check(tools: Tools) -> None:
        for call, arguments in ODD_CALLS.items():
            filled = {
                name: [v.format(odd) for v in value]
                if isinstance(value, list)
                else value.format(odd)
                if isinstance(value, str)
                else value
                for name, value in arguments.items()
            }
            await tools.refused(call.split()[0], **filled)
        assert [change.path for change in await tools.workspace.sandbox.diff()] == []
        assert await tools("bash", command="ls /tmp") == "[exit code 0]"

    with_tools(check)


def test_text_with_a_lone_surrogate_is_refused_and_nul_is_written() -> None:
    async def check(tools: Tools) -> None:
        await tools.refused("create", path="new.txt", content="a\ud800b")
        await tools("create", path="new.bin", content="a\0b")
        assert await tools.content("new.bin") == b"a\0b"
        assert [change.path for change in await tools.workspace.sandbox.diff()] == ["new.bin"]

    with_tools(check)


def test_an_ambiguous_text_names_its_first_lines_and_no_more() -> None:
    async def check(tools: Tools) -> None:
        await tools("create", path="many.txt", content="a\n" * 30)
        told = await tools.refused("str_replace", path="many.txt", old="a", new="b")
        assert "occurs 30 times" in told and "at lines 1, 2, 3, 4, 5;" in told

    with_tools(check)
