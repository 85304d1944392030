"""Conformance: `diff` tells every kind of change, and nothing else, and runs nothing.

Not here: snapshots and forks (`workspace_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from katgym.sandbox.changes import ChangeKind
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import (
    ConformanceCheck,
    Files,
    Fixture,
    check,
    sandbox_check,
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
    expect.that(diff.is_complete, "a small diff is not complete")
    paths = [change.path for change in diff]
    expect.equal(paths, sorted(paths), "the order of the paths")
    return {c.path: (str(c.kind), c.file_type, c.content) for c in diff}


def _changes(description: str, files: Files, script: str, text: str) -> ConformanceCheck:
    """Make a check of the diff after a script.

    text: one change a line: its kind, type of file, path, and after "=" what a file holds.
    """
    wanted: dict[str, Told] = {}
    for line in text.strip().splitlines():
        kind, file_type, path = line.split()
        name, is_told, content = path.partition("=")
        wanted[name] = (kind, file_type, content.encode() if is_told else None)

    async def run(sandbox: Sandbox) -> None:
        expect.equal(await list_changes(sandbox), {}, "the diff of a new workspace")
        await expect.run(sandbox, f"set -e\n{script}")
        found = await list_changes(sandbox)
        for path in sorted({*wanted, *found}):
            expect.equal(found.get(path), wanted.get(path), f"change of {path!r}")

    run.__doc__ = description
    return sandbox_check(files)(run)


files = _changes(
    "Files: added, modified, deleted, re-moded, empty.",
    dict.fromkeys(("kept", "changed", "grown", "mode", "gone", "d/gone"), b"1"),
    "echo -n 2 > changed; echo -n 2 >> grown; chmod 755 mode; rm gone; rm d/gone\n"
    ": > empty; mkdir -p new/deep; echo -n n > new/deep/file",
    """
    modified file changed=2
    modified file grown=12
    mode     file mode=1
    deleted  file gone
    deleted  file d/gone
    added    file empty=
    added    dir  new
    added    dir  new/deep
    added    file new/deep/file=n
    """,
)
no_change = _changes(
    "What was written again, touched, or changed and put back, is no change.",
    dict.fromkeys(("same", "touched", "mode", "again", "d/moved", "e/x"), b"1"),
    "echo -n 1 > same; touch -d 2001-01-01 touched; chmod 700 mode; chmod 644 mode\n"
    "rm again; echo -n 1 > again; mv d/moved d/away; mv d/away d/moved\n"
    "mkdir new; rmdir new; rm -r e; mkdir e; echo -n 1 > e/x; cat same touched > /dev/null",
    "",
)
types = _changes(
    "Files become directories, links and pipes, and the other way round.",
    {
        **dict.fromkeys(("to_dir", "to_file/x", "to_link", "to_pipe"), b"1"),
        **dict.fromkeys(("from_link", "relinked", "kept"), FileEntry(link_target="to_dir")),
    },
    "rm to_dir; mkdir to_dir; echo -n n > to_dir/n\n"
    "rm -r to_file; echo -n f > to_file; rm to_link; ln -s nowhere to_link\n"
    "rm from_link; echo -n f > from_link; ln -sfn elsewhere relinked\n"
    "rm to_pipe; mkfifo to_pipe pipe; ln -s /etc/passwd link",
    """
    modified dir   to_dir
    added    file  to_dir/n=n
    modified file  to_file=f
    deleted  file  to_file/x
    modified link  to_link
    modified file  from_link=f
    modified link  relinked
    modified other to_pipe
    added    other pipe
    added    link  link
    """,
)
directories = _changes(
    "Directories: added, emptied, deleted with what was in them, made anew, re-moded, moved.",
    dict.fromkeys(
        ("emptied/x", "gone/x", "gone/y/z", "anew/old", "mode/x", "moved/a", "moved/b/c"), b"1"
    ),
    "mkdir empty; rm emptied/x; rm -r gone; rm -r anew; mkdir anew; echo -n n > anew/new\n"
    "chmod 700 mode; mv moved there",
    """
    added   dir  empty
    deleted file emptied/x
    deleted dir  gone
    deleted file gone/x
    deleted dir  gone/y
    deleted file gone/y/z
    deleted file anew/old
    added   file anew/new=n
    mode    dir  mode
    deleted dir  moved
    deleted file moved/a
    deleted dir  moved/b
    deleted file moved/b/c
    added   dir  there
    added   file there/a=1
    added   dir  there/b
    added   file there/b/c=1
    """,
)
what_the_agent_made_unreadable = _changes(
    "Files and directories without permissions are in the diff with their content.",
    {"old": b"1"},
    "mkdir d; echo -n 1 > d/f; echo -n 1 > f; chmod 0 d/f f d; echo -n 2 > old; chmod 0 old",
    """
    added    dir  d
    added    file d/f=1
    added    file f=1
    modified file old=2
    """,
)


@sandbox_check({"old": b"1"})
async def modes_sizes_and_targets(sandbox: Sandbox) -> None:
    """Modes with setuid and sticky, sizes, and the targets of links are told."""
    script = "echo -n 12 > a; chmod 4755 a; mkdir s; chmod 1777 s; ln -s '../x y' l; chmod 600 old"
    wanted: Mapping[str, Mapping[str, Any]] = {
        "a": {"mode": 0o4755, "size": 2, "kind": ChangeKind.ADDED, "content": b"12"},
        "s": {"mode": 0o1777, "file_type": "dir", "content": None},
        "l": {"link_target": "../x y", "file_type": "link", "content": None},
        "old": {"mode": 0o600, "kind": ChangeKind.MODE, "size": 1, "content": b"1"},
    }
    await expect.run(sandbox, f"set -e; {script}")
    diff = await sandbox.diff()
    for path, fields in wanted.items():
        for name, value in fields.items():
            expect.equal(getattr(diff[path], name), value, f"{name} of {path!r}")


@check()
async def layers(fixture: Fixture) -> None:
    """A later layer hides an earlier one's file, and the diff is against all of them together."""
    spec = fixture.spec({"both": b"low", "low": b"low", "gone": b"low", "d/low": b"low"})
    top = fixture.spec({"both": b"top", "top": b"top", "d/top": b"top"})
    spec = fixture.spec(layers=(*spec.layers, *top.layers[len(fixture.base.layers) :]))
    async with await fixture.backend.create(spec) as sandbox:
        look = "cat both low top d/low d/top; echo -n low > both"
        await expect.run(sandbox, look, stdout=b"toplowtoplowtop")
        await expect.run(sandbox, "rm gone; echo -n x > low; rm d/low; echo -n top > top")
        wanted: dict[str, Told] = {
            "both": ("modified", "file", b"low"),
            "gone": ("deleted", "file", None),
            "low": ("modified", "file", b"x"),
            "d/low": ("deleted", "file", None),
        }
        expect.equal(await list_changes(sandbox), wanted, "the diff against two layers")


@sandbox_check()
async def odd_names(sandbox: Sandbox) -> None:
    """Odd names are told as they are: newlines, escapes, no UTF-8, 255 bytes."""
    for name in ODD_NAMES:
        await sandbox.write(name, b"1")
    wanted = dict.fromkeys(ODD_NAMES, ("added", "file", b"1"))
    expect.equal(await list_changes(sandbox), wanted, "changes")


@sandbox_check({"z/z": b"abc"})
async def caps(sandbox: Sandbox) -> None:
    """Large files come without content, changes beyond the number are counted: not complete."""
    await expect.run(sandbox, "echo -n 1 > z/z; for i in 1 2 3 4 5 6; do echo -n 123 > f$i; done")
    await expect.run(sandbox, "head -c 3000 /dev/zero > g; truncate -s 20M sparse")
    diff = await sandbox.diff(max_file_bytes=100)
    found = (diff["f1"].content, diff["g"].content, diff["g"].size, diff["sparse"].size)
    expect.equal(found, (b"123", None, 3000, 20 << 20), "contents and sizes")
    expect.that(not diff.is_complete, "a diff without contents is complete")
    diff = await sandbox.diff(max_changes=5)
    expect.equal((len(diff), diff.num_omitted), (5, 4), "changes told and left out")
    expect.equal((diff["z/z"].content, diff.num_omitted_base), (b"1", 0), "layers' own changes")
    diff = await sandbox.diff(max_changes=0)
    expect.equal((diff.num_omitted, diff.num_omitted_base), (9, 1), "all left out")
    expect.that(not diff.is_complete, "a diff with changes left out is complete")


@sandbox_check({"f": b"abc"})
async def writes_through_a_mapping(sandbox: Sandbox) -> None:
    """A write through a mapping is in the diff and reset, though it changes no time of the file."""
    write = (
        "import mmap\nwith open('f', 'r+b') as f, mmap.mmap(f.fileno(), 3) as m:\n"
        "    assert m[0] == 97; m[0] = 120"  # a page that was read first is written unnoticed
    )
    expect.equal(await list_changes(sandbox), {}, "changes before")
    await expect.run(sandbox, ["python3", "-c", write])
    expect.equal(await list_changes(sandbox), {"f": ("modified", "file", b"xbc")}, "changes")
    await sandbox.reset()
    await expect.content(sandbox, "f", b"abc")


@sandbox_check()
async def deep_trees(sandbox: Sandbox) -> None:
    """A path far longer than the system's limit is told, or the diff says it is not complete."""
    make = (
        "import os\nfor _ in range(100):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\n"
        "open('end', 'w').write('1')"
    )
    await expect.run(sandbox, ["python3", "-c", make])
    diff = await sandbox.diff()
    expect.that(diff.is_complete or diff.num_omitted > 0, "left out and not counted")
    if diff.is_complete:
        expect.equal(len(diff), 101, "changes")
        path = "/".join(["d" * 100] * 100 + ["end"])
        expect.equal(diff[path].content, b"1", "the deepest file's content")


@sandbox_check({"file": b"1"})
async def nothing_of_the_agents_is_run(sandbox: Sandbox) -> None:
    """Git hooks, filters and monitors in the workspace are data: a diff runs nothing."""
    written = {
        ".git/config": b'[core]\n fsmonitor = "touch /tmp/ran; false"\n pager = touch /tmp/ran\n'
        b'[diff]\n external = touch /tmp/ran\n[filter "x"]\n clean = touch /tmp/ran\n',
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".gitattributes": b"* filter=x diff=x\n",
        ".gitignore": b"*\n",
        "file": b"2",
    }
    for path, data in written.items():
        await sandbox.write(path, data)
    expect.equal(set(await list_changes(sandbox)), {".git", *written}, "paths")
    await expect.run(sandbox, "! test -e /tmp/ran")


@sandbox_check()
async def commands_end_first(sandbox: Sandbox) -> None:
    """A diff ends the commands that run, so that it is of one moment."""
    running = asyncio.create_task(sandbox.exec(f"({BEAT}) & {BEAT}"))
    await expect.until(sandbox, "-s /tmp/beat")
    await sandbox.diff()
    result = await running
    expect.equal((result.signal, result.is_timed_out), (9, False), "the command it ended")
    await expect_no_beat(sandbox, "a command")
