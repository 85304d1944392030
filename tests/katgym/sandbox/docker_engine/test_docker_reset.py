"""Containers are read, put back, saved and forked, and nothing outlives a reset."""

from __future__ import annotations

import asyncio

import pytest
from docker_play import run

from katgym.sandbox import ChangeKind, SandboxError, SandboxLimits, SandboxSpec
from katgym.sandbox.limits import MEBIBYTE

pytestmark = pytest.mark.docker


def test_memory_filled_with_files_leaves_the_supervisor_alive(docker_image):
    limits = SandboxLimits(memory_bytes=160 * MEBIBYTE, file_bytes=None)

    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image, limits=limits)) as box:
            fill = "cat /dev/zero > a; cat /dev/zero > /tmp/b; cat /dev/zero > /dev/shm/c; true"
            await box.exec(fill, limits=SandboxLimits(wall_s=20))
            await box.reset()
            return (await box.exec("ls . /tmp /dev/shm")).stdout

    assert run(work) == b".:\n\n/dev/shm:\n\n/tmp:\n"


def test_diff_reset_snapshot_and_fork(docker_image, store):
    layer = store.add_files({"a": b"1", "b": b"2", "sub/c": b"3"})
    script = """
        echo edited > a; rm b; chmod 700 sub/c; ln -s a link; mkdir locked; echo x > locked/f
        mkfifo pipe; chmod 000 locked .; echo t > /tmp/t
    """

    async def work(backend):
        spec = SandboxSpec(image=docker_image, layers=(layer,))
        async with await backend.create(spec) as box:
            first = await box.diff()
            await box.exec("chmod 755 .")
            await box.exec(script)
            changed = await box.diff()
            saved = await box.snapshot()
            await box.reset()
            clean = await box.diff(), (await box.exec("cat a b sub/c; ls -A /tmp")).stdout
            one, two = await box.fork(2, at=saved)
            await one.exec("echo mine > mine")
            state = "cat a link; ls -A; stat -c %a locked sub/c"
            seen = [(await fork.exec(state)).stdout for fork in (one, two)]
            forked = [{c.path for c in await fork.diff()} for fork in (one, two)]
            await one.reset(saved)
            again = {c.path for c in await one.diff()}
            await one.reset()
            return first, changed, clean, seen, forked, again, await one.diff()

    first, changed, clean, seen, forked, again, last = run(work)
    assert len(first) == len(clean[0]) == len(last) == 0
    kinds = {c.path: c.kind for c in changed}
    assert kinds == {
        "a": ChangeKind.MODIFIED,
        "b": ChangeKind.DELETED,
        "sub/c": ChangeKind.MODE,
        "link": ChangeKind.ADDED,
        "locked": ChangeKind.ADDED,
        "locked/f": ChangeKind.ADDED,
        "pipe": ChangeKind.ADDED,
    }
    assert (changed["a"].content, changed["locked/f"].content) == (b"edited\n", b"x\n")
    assert (changed["locked"].mode, changed["link"].link_target) == (0, "a")
    assert changed.is_complete
    assert clean[1] == b"123"
    assert seen[1] == b"edited\nedited\na\nlink\nlocked\nsub\n0\n700\n"
    assert seen[0] == seen[1].replace(b"locked\nsub", b"locked\nmine\nsub")
    kept = set(kinds) - {"pipe"}
    assert forked == [kept | {"mine"}, kept]
    assert again == kept


def test_reset_copes_with_a_tree_too_deep_to_be_named(docker_image, store):
    layer = store.add_files({"a": b"1"})

    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image, layers=(layer,))) as box:
            await box.exec("rm a; for i in $(seq 400); do mkdir d && cd d; done; echo x > f")
            told = await box.diff()
            with pytest.raises(SandboxError, match="too deep"):
                await box.snapshot()
            await box.reset()
            return told.is_complete, (await box.exec("ls; cat a")).stdout, len(await box.diff())

    assert run(work) == (False, b"a\n1", 0)


def test_commands_wait_while_the_tree_is_read(docker_image, store):
    layer = store.add_files({f"f{i}": b"1" for i in range(200)})

    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image, layers=(layer,))) as box:
            await box.exec("for f in f*; do echo 2 > $f; done")
            reset = asyncio.create_task(box.reset())
            await asyncio.sleep(0)
            result = await box.exec("cat f* | sort | uniq -c")
            await reset
            return result.stdout.split()

    assert run(work) == [b"1", b"1" * 200]


def test_reset_leaves_nothing_that_outlives_commands(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            await box.exec("ipcmk -Q; ipcmk -S 1; ipcmk -M 100; echo > /dev/shm/x; echo > /tmp/x")
            before = (await box.exec("ipcs | grep -c 0x")).stdout
            await box.reset()
            after = (await box.exec("ipcs | grep -c 0x; ls /tmp /dev/shm /dev/mqueue")).stdout
            return before, after

    assert run(work) == (b"3\n", b"0\n/dev/mqueue:\n\n/dev/shm:\n\n/tmp:\n")
