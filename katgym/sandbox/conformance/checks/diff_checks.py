"""Conformance: `diff` tells every kind of change, and nothing else, and runs nothing.

Not here: snapshots and forks (`workspace_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from katgym.sandbox.changes import ChangeKind, FileChange
from katgym.sandbox.conformance.check import (
    Fixture,
    check,
    expect,
    expect_equal,
    expect_ok,
    sandbox_check,
    until,
)
from katgym.sandbox.conformance.checks.file_checks import ODD_NAMES
from katgym.sandbox.conformance.checks.process_checks import BEAT, expect_no_beat
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.sandbox import Sandbox

Told = tuple[str, str, bytes | None]
"""Kind, type of file, content."""


async def list_changes(sandbox: Sandbox) -> dict[str, Told]:
    """Return the diff as path -> what is told."""
    diff = await sandbox.diff()
    expect(diff.is_complete, "a small diff is not complete")
    paths = [change.path for change in diff]
    expect_equal(paths, sorted(paths), "the order of the paths")
    return {c.path: (str(c.kind), c.file_type, c.content) for c in diff}


async def _expect_changes(
    fixture: Fixture,
    files: Mapping[str, bytes | FileEntry],
    script: str,
    wanted: Mapping[str, Told],
) -> None:
    async with fixture.sandbox(files) as sandbox:
        expect_equal(await list_changes(sandbox), {}, "the diff of a new workspace")
        expect_ok(await sandbox.exec(f"set -e\n{script}"))
        found = await list_changes(sandbox)
        for path in sorted({*wanted, *found}):
            expect_equal(found.get(path), wanted.get(path), f"change of {path!r}")


@check()
async def files(fixture: Fixture) -> None:
    """Files: added, modified, deleted, re-moded, empty."""
    await _expect_changes(
        fixture,
        {"kept": b"1", "changed": b"1", "grown": b"1", "mode": b"1", "gone": b"1", "d/gone": b"1"},
        "echo -n 2 > changed; echo -n 2 >> grown; chmod 755 mode; rm gone; rm d/gone\n"
        ": > empty; mkdir -p new/deep; echo -n n > new/deep/file",
        {
            "changed": ("modified", "file", b"2"),
            "grown": ("modified", "file", b"12"),
            "mode": ("mode", "file", b"1"),
            "gone": ("deleted", "file", None),
            "d/gone": ("deleted", "file", None),
            "empty": ("added", "file", b""),
            "new": ("added", "dir", None),
            "new/deep": ("added", "dir", None),
            "new/deep/file": ("added", "file", b"n"),
        },
    )


@check()
async def no_change(fixture: Fixture) -> None:
    """What was written again, touched, or changed and put back, is no change."""
    await _expect_changes(
        fixture,
        {"same": b"1", "touched": b"1", "mode": b"1", "again": b"1", "d/moved": b"1", "e/x": b"1"},
        "echo -n 1 > same; touch -d 2001-01-01 touched; chmod 700 mode; chmod 644 mode\n"
        "rm again; echo -n 1 > again; mv d/moved d/away; mv d/away d/moved\n"
        "mkdir new; rmdir new; rm -r e; mkdir e; echo -n 1 > e/x; cat same touched > /dev/null",
        {},
    )


@check()
async def types(fixture: Fixture) -> None:
    """Files become directories, links and pipes, and the other way round."""
    await _expect_changes(
        fixture,
        {
            "to_dir": b"1",
            "to_file/x": b"1",
            "to_link": b"1",
            "from_link": FileEntry(link_target="to_dir"),
            "relinked": FileEntry(link_target="to_dir"),
            "kept": FileEntry(link_target="to_dir"),
            "to_pipe": b"1",
        },
        "rm to_dir; mkdir to_dir; echo -n n > to_dir/n\n"
        "rm -r to_file; echo -n f > to_file; rm to_link; ln -s nowhere to_link\n"
        "rm from_link; echo -n f > from_link; ln -sfn elsewhere relinked\n"
        "rm to_pipe; mkfifo to_pipe pipe; ln -s /etc/passwd link",
        {
            "to_dir": ("modified", "dir", None),
            "to_dir/n": ("added", "file", b"n"),
            "to_file": ("modified", "file", b"f"),
            "to_file/x": ("deleted", "file", None),
            "to_link": ("modified", "link", None),
            "from_link": ("modified", "file", b"f"),
            "relinked": ("modified", "link", None),
            "to_pipe": ("modified", "other", None),
            "pipe": ("added", "other", None),
            "link": ("added", "link", None),
        },
    )


@check()
async def directories(fixture: Fixture) -> None:
    """Directories: added, emptied, deleted with what was in them, made anew, re-moded, moved."""
    await _expect_changes(
        fixture,
        {
            "emptied/x": b"1",
            "gone/x": b"1",
            "gone/y/z": b"1",
            "anew/old": b"1",
            "mode/x": b"1",
            "moved/a": b"1",
            "moved/b/c": b"1",
        },
        "mkdir empty; rm emptied/x; rm -r gone; rm -r anew; mkdir anew; echo -n n > anew/new\n"
        "chmod 700 mode; mv moved there",
        {
            "empty": ("added", "dir", None),
            "emptied/x": ("deleted", "file", None),
            "gone": ("deleted", "dir", None),
            "gone/x": ("deleted", "file", None),
            "gone/y": ("deleted", "dir", None),
            "gone/y/z": ("deleted", "file", None),
            "anew/old": ("deleted", "file", None),
            "anew/new": ("added", "file", b"n"),
            "mode": ("mode", "dir", None),
            "moved": ("deleted", "dir", None),
            "moved/a": ("deleted", "file", None),
            "moved/b": ("deleted", "dir", None),
            "moved/b/c": ("deleted", "file", None),
            "there": ("added", "dir", None),
            "there/a": ("added", "file", b"1"),
            "there/b": ("added", "dir", None),
            "there/b/c": ("added", "file", b"1"),
        },
    )


@sandbox_check({"old": b"1"})
async def modes_sizes_and_targets(sandbox: Sandbox) -> None:
    """Modes with setuid and sticky, sizes, and the targets of links are told."""
    script = "echo -n 12 > a; chmod 4755 a; mkdir s; chmod 1777 s; ln -s '../x y' l; chmod 600 old"
    wanted: dict[str, dict[str, Any]] = {
        "a": {"mode": 0o4755, "size": 2, "kind": ChangeKind.ADDED, "content": b"12"},
        "s": {"mode": 0o1777, "file_type": "dir"},
        "l": {"link_target": "../x y", "file_type": "link"},
        "old": {"mode": 0o600, "kind": ChangeKind.MODE, "size": 1, "content": b"1"},
    }
    expect_ok(await sandbox.exec(f"set -e; {script}"))
    diff = await sandbox.diff()
    for path, fields in wanted.items():
        change: FileChange = diff[path]
        for name, value in fields.items():
            expect_equal(getattr(change, name), value, f"{name} of {path!r}")
    expect(diff["l"].content is None and diff["s"].content is None, "content of no file")


@check()
async def layers(fixture: Fixture) -> None:
    """A later layer hides an earlier one's file, and the diff is against all of them together."""
    spec = fixture.spec({"both": b"low", "low": b"low", "gone": b"low", "d/low": b"low"})
    top = fixture.spec({"both": b"top", "top": b"top", "d/top": b"top"})
    spec = fixture.spec(layers=(*spec.layers, *top.layers[len(fixture.base.layers) :]))
    async with await fixture.backend.create(spec) as sandbox:
        shown = expect_ok(await sandbox.exec("cat both low top d/low d/top; echo -n low > both"))
        expect_equal(shown, b"toplowtoplowtop", "what the layers show")
        expect_ok(await sandbox.exec("rm gone; echo -n x > low; rm d/low; echo -n top > top"))
        wanted: dict[str, Told] = {
            "both": ("modified", "file", b"low"),
            "gone": ("deleted", "file", None),
            "low": ("modified", "file", b"x"),
            "d/low": ("deleted", "file", None),
        }
        expect_equal(await list_changes(sandbox), wanted, "the diff against two layers")


@sandbox_check()
async def odd_names(sandbox: Sandbox) -> None:
    """Odd names are told as they are: newlines, escapes, no UTF-8, 255 bytes."""
    for name in ODD_NAMES:
        await sandbox.write(name, b"1")
    found = await list_changes(sandbox)
    expect_equal(sorted(found), sorted(ODD_NAMES), "paths")
    expect_equal(set(found.values()), {("added", "file", b"1")}, "changes")


@sandbox_check({"old": b"1"})
async def what_the_agent_made_unreadable(sandbox: Sandbox) -> None:
    """Files and directories without permissions are in the diff with their content."""
    script = (
        "mkdir d; echo -n 1 > d/f; echo -n 1 > f; chmod 0 d/f f d; echo -n 2 > old; chmod 0 old"
    )
    expect_ok(await sandbox.exec(script))
    wanted: dict[str, Told] = {
        "d": ("added", "dir", None),
        "d/f": ("added", "file", b"1"),
        "f": ("added", "file", b"1"),
        "old": ("modified", "file", b"2"),
    }
    expect_equal(await list_changes(sandbox), wanted, "changes")


@sandbox_check()
async def caps(sandbox: Sandbox) -> None:
    """Large files come without content, changes beyond the number are counted: not complete."""
    expect_ok(await sandbox.exec("for i in 1 2 3 4 5 6; do echo -n 123 > f$i; done"))
    expect_ok(await sandbox.exec("head -c 3000 /dev/zero > g; truncate -s 20M sparse"))
    diff = await sandbox.diff(max_file_bytes=100)
    found = (diff["f1"].content, diff["g"].content, diff["g"].size, diff["sparse"].size)
    expect_equal(found, (b"123", None, 3000, 20 << 20), "contents and sizes")
    expect(not diff.is_complete, "a diff without contents is complete")
    diff = await sandbox.diff(max_changes=5)
    expect_equal((len(diff), diff.num_omitted), (5, 3), "changes told and left out")
    expect(not diff.is_complete, "a diff with changes left out is complete")


@sandbox_check({"f": b"abc"})
async def writes_through_a_mapping(sandbox: Sandbox) -> None:
    """A write through a mapping is in the diff and reset, though it changes no time of the file."""
    write = (
        "import mmap\nwith open('f', 'r+b') as f, mmap.mmap(f.fileno(), 3) as m:\n"
        "    assert m[0] == 97; m[0] = 120"  # a page that was read first is written unnoticed
    )
    expect_equal(await list_changes(sandbox), {}, "changes before")
    expect_ok(await sandbox.exec(["python3", "-c", write]))
    expect_equal(await list_changes(sandbox), {"f": ("modified", "file", b"xbc")}, "changes")
    await sandbox.reset()
    expect_equal(await sandbox.read("f"), b"abc", "what a reset leaves")


@sandbox_check()
async def deep_trees(sandbox: Sandbox) -> None:
    """A path far longer than the system's limit is told, or the diff says it is not complete."""
    make = (
        "import os\nfor _ in range(100):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\n"
        "open('end', 'w').write('1')"
    )
    expect_ok(await sandbox.exec(["python3", "-c", make]))
    diff = await sandbox.diff()
    expect(diff.is_complete or diff.num_omitted > 0, "left out and not counted")
    if diff.is_complete:
        expect_equal(len(diff), 101, "changes")
        path = "/".join(["d" * 100] * 100 + ["end"])
        expect_equal(diff[path].content, b"1", "the deepest file's content")


@sandbox_check({"file": b"1"})
async def nothing_of_the_agents_is_run(sandbox: Sandbox) -> None:
    """Git hooks, filters and monitors in the workspace are data: a diff runs nothing."""
    config = (
        '[core]\n fsmonitor = "touch /tmp/ran; false"\n pager = touch /tmp/ran\n'
        '[diff]\n external = touch /tmp/ran\n[filter "x"]\n clean = touch /tmp/ran\n'
    )
    await sandbox.write(".git/config", config.encode())
    await sandbox.write(".git/HEAD", b"ref: refs/heads/main\n")
    await sandbox.write(".gitattributes", b"* filter=x diff=x\n")
    await sandbox.write(".gitignore", b"*\n")
    await sandbox.write("file", b"2")
    found = await list_changes(sandbox)
    paths = {".git", ".git/HEAD", ".git/config", ".gitattributes", ".gitignore", "file"}
    expect_equal(set(found), paths, "paths")
    expect_ok(await sandbox.exec("! test -e /tmp/ran"))


@sandbox_check()
async def commands_end_first(sandbox: Sandbox) -> None:
    """A diff ends the commands that run, so that it is of one moment."""
    running = asyncio.create_task(sandbox.exec(f"({BEAT}) & {BEAT}"))
    await until(sandbox, "-s /tmp/beat")
    await sandbox.diff()
    result = await running
    expect_equal((result.signal, result.is_timed_out), (9, False), "the command it ended")
    await expect_no_beat(sandbox, "a command")
