"""Files of a local sandbox: what changed, forks, snapshots, links."""

from __future__ import annotations

import textwrap

import pytest
from local_play import SMALL, in_sandbox

from katgym.errors import UsageError
from katgym.sandbox import (
    ChangeKind,
    Sandbox,
    SandboxSpec,
    layer_store,
)
from katgym.sandbox.venvs import ensure_venv


def test_a_diff_tells_every_kind_of_change_and_nothing_else() -> None:
    layer = layer_store().add_files(
        {
            "same": b"1",
            "touched": b"1",
            "changed": b"1",
            "mode": b"1",
            "gone": b"1",
            "d/gone": b"1",
            "becomes_dir": b"1",
            "becomes_file/x": b"1",
            "again/old": b"1",
        }
    )

    async def play(sandbox: Sandbox) -> None:
        script = """
            echo -n 1 > touched; echo -n 2 > changed; chmod 755 mode; rm gone; rm -r d
            rm becomes_dir; mkdir becomes_dir; echo -n n > becomes_dir/n
            rm -r becomes_file; echo -n f > becomes_file
            rm -r again; mkdir again; echo -n n > again/new
            ln -s /etc/passwd link; mkfifo pipe; mkdir empty; : > void
        """
        assert (await sandbox.exec(textwrap.dedent(script))).exit_code == 0
        diff = await sandbox.diff()
        found = {c.path: (str(c.kind), c.file_type, c.content) for c in diff}
        assert found == {
            "changed": ("modified", "file", b"2"),
            "mode": ("mode", "file", b"1"),
            "gone": ("deleted", "file", None),
            "d": ("deleted", "dir", None),
            "d/gone": ("deleted", "file", None),
            "becomes_dir": ("modified", "dir", None),
            "becomes_dir/n": ("added", "file", b"n"),
            "becomes_file": ("modified", "file", b"f"),
            "becomes_file/x": ("deleted", "file", None),
            "again/old": ("deleted", "file", None),
            "again/new": ("added", "file", b"n"),
            "link": ("added", "link", None),
            "pipe": ("added", "other", None),
            "empty": ("added", "dir", None),
            "void": ("added", "file", b""),
        }
        assert diff["link"].link_target == "/etc/passwd"
        assert diff["mode"].kind is ChangeKind.MODE and diff["mode"].mode == 0o755
        assert diff.is_complete

    in_sandbox(play, SandboxSpec(layers=(layer,), limits=SMALL))


def test_forks_are_apart_from_each_other_and_outlive_their_parent() -> None:
    async def play(parent: Sandbox) -> None:
        await parent.write("a", b"parent")
        one, two = await parent.fork(2)
        await one.write("a", b"one")
        await parent.write("a", b"later")
        await parent.kill()
        assert await one.read("a") == b"one"
        assert await two.read("a") == b"parent"
        assert [c.path for c in await two.diff()] == ["a"]
        (grandchild,) = await one.fork()
        await one.kill()
        assert await grandchild.read("a") == b"one"

    in_sandbox(play)


def test_snapshots_come_back_any_number_of_times_and_reset_empties_tmp() -> None:
    async def play(sandbox: Sandbox) -> None:
        await sandbox.write("a", b"1")
        first = await sandbox.snapshot()
        await sandbox.write("a", b"2")
        second = await sandbox.snapshot()
        await sandbox.exec("rm a; touch /tmp/x /dev/shm/x ~/x")
        await sandbox.reset(second)
        assert await sandbox.read("a") == b"2"
        assert (await sandbox.exec("ls /tmp /dev/shm ~")).stdout.count(b"x") == 0
        await sandbox.reset(first)
        assert await sandbox.read("a") == b"1"
        await sandbox.reset()
        assert len(await sandbox.diff()) == 0
        with pytest.raises(UsageError, match="no snapshot"):
            await sandbox.reset("snapshot-of-nobody")

    in_sandbox(play)


def test_sixty_snapshots_deep_still_works() -> None:
    async def play(sandbox: Sandbox) -> None:
        for number in range(60):
            await sandbox.write(f"f{number}", b"x")
            await sandbox.snapshot()
        assert len(await sandbox.diff()) == 60

    in_sandbox(play)


def test_reads_and_writes_follow_no_link_out_and_write_replaces_one() -> None:
    async def play(sandbox: Sandbox) -> None:
        await sandbox.exec(
            "ln -s /etc out; ln -s /etc/passwd p; mkfifo pipe; echo -n x > in; ln -s in l"
        )
        for path in ("out/passwd", "p", "../etc/passwd", "/etc/passwd", "pipe", "out", "missing"):
            with pytest.raises(OSError):
                await sandbox.read(path)
        assert await sandbox.read("l") == b"x"
        with pytest.raises(OSError):
            await sandbox.write("out/new", b"")
        await sandbox.write("p", b"mine")
        assert await sandbox.read("p") == b"mine"
        assert (await sandbox.exec("stat -c '%F %U' p")).stdout == b"regular file agent\n"
        with pytest.raises(OSError, match="larger than 0 bytes"):
            await sandbox.read("in", max_bytes=0)

    in_sandbox(play)


def test_a_warm_interpreter_answers_calls_and_reports() -> None:
    spec = SandboxSpec(limits=SMALL, python=ensure_venv(()), preload=("json", "timeit"))

    async def play(sandbox: Sandbox) -> None:
        result, reported = await sandbox.call("timeit:main", b"")  # takes other arguments
        assert (result.exit_code, reported) == (1, b"")
        assert b"TypeError" in result.stderr
        with pytest.raises(UsageError, match="preload"):
            other = await sandbox.backend.create(SandboxSpec(limits=SMALL))
            await other.call("json:dumps", b"")

    in_sandbox(play, spec)
