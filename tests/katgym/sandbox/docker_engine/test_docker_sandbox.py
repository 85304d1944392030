"""Containers of a real Docker Engine as sandboxes.

Longer than a module should be: every test needs the engine and the same two helpers, and each is an
episode of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

import docker
import pytest

from katgym.errors import UsageError
from katgym.sandbox import ChangeKind, SandboxError, SandboxLimits, SandboxSpec
from katgym.sandbox.docker_engine import labels
from katgym.sandbox.docker_engine.backend import DockerBackend
from katgym.sandbox.docker_engine.engine import Engine
from katgym.sandbox.limits import MEBIBYTE

pytestmark = pytest.mark.docker


def containers(**filters: str) -> list[dict]:
    """Return the containers with a label, by the SDK itself."""
    client = docker.from_env()
    try:
        found = []
        for row in client.api.containers(all=True, filters={"label": filters["label"]}):
            with contextlib.suppress(docker.errors.NotFound):  # it went since it was listed
                found.append(client.api.inspect_container(row["Id"]))
        return found
    finally:
        client.close()


def run(work, **options):
    """Run `await work(backend)` with a backend that is closed afterwards."""

    async def main():
        backend = DockerBackend(**options)
        try:
            return await work(backend)
        finally:
            await backend.aclose()

    return asyncio.run(main())


def test_command_has_no_privilege_no_network_and_a_read_only_root(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            status = await box.exec(
                "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"
            )
            links = await box.exec("id -u; ls /sys/class/net; touch /x 2>&1; ls /proc/1/fd 2>&1")
            return status.stdout.split(), links.text()

    status, text = run(work)
    assert status[1::2] == [b"0" * 16, b"0" * 16, b"1", b"2"]
    assert text.splitlines()[:2] == ["1000", "lo"]
    assert "Read-only file system" in text
    assert "cannot open directory '/proc/1/fd': Permission denied" in text


def test_engine_was_asked_for_limits_and_labels(docker_image):
    limits = SandboxLimits(memory_bytes=200 * MEBIBYTE, max_processes=20)
    spec = SandboxSpec(image=docker_image, limits=limits, labels={"test": "inspect"})

    async def work(backend):
        async with await backend.create(spec):
            return containers(label="test=inspect")

    (found,) = run(work)
    host = found["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 200 * MEBIBYTE
    assert host["PidsLimit"] == 24
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert found["Config"]["Labels"]["katgym.sandbox.pid"] == str(os.getpid())
    assert containers(label="test=inspect") == []


@pytest.mark.parametrize(
    ("command", "limits", "limit_hit"),
    [
        ("python3 -c 'x = bytearray(10**9)'", {"memory_bytes": 128 * MEBIBYTE}, "memory_bytes"),
        ("f() { f | f & }; f; sleep 60", {"wall_s": 0.5, "max_processes": 32}, "wall_s"),
        ("while :; do :; done", {"cpu_s": 0.3}, "cpu_s"),
        ("exec head -c 99999 /dev/zero > f", {"file_bytes": 4096}, "file_bytes"),
    ],
)
def test_limit_ends_the_command_and_the_sandbox_lives_on(docker_image, command, limits, limit_hit):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, limits=SandboxLimits(**limits))
        async with await backend.create(spec) as box:
            result = await box.exec(command)
            ps = await box.exec("cat /proc/[0-9]*/comm")
            return result, ps.stdout.split()

    result, left = run(work)
    assert result.limit_hit == limit_hit
    assert result.is_timed_out == (limit_hit in ("wall_s", "cpu_s"))
    assert result.is_out_of_memory == (limit_hit == "memory_bytes")
    assert len(left) <= 4  # supervisor, guardian, bash or cat


def test_full_disk_and_too_many_files_are_the_commands_problem(docker_image):
    limits = SandboxLimits(memory_bytes=256 * MEBIBYTE, disk_bytes=4 * MEBIBYTE, max_files=50)

    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image, limits=limits)) as box:
            full = await box.exec("head -c 9000000 /dev/zero > big; rm big")
            many = await box.exec("for i in $(seq 60); do echo > f$i || break; done; ls | wc -l")
            return full.text(), many.stdout

    full, many = run(work)
    assert "No space left on device" in full
    assert int(many) <= 50


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


def test_image_that_holds_the_workspace(docker_image, store):
    client = docker.from_env()
    tag = "katgym-test-repo:1"
    made = client.containers.create(docker_image, ["/bin/true"], labels={"test": "repo"})
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, text in (("testbed/src/a.py", "x = 1\n"), ("testbed/old", "old")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        info = tarfile.TarInfo("testbed/env")
        info.type, info.linkname = tarfile.SYMTYPE, "/usr/bin/env"
        tar.addfile(info)
    made.put_archive("/", data.getvalue())
    made.commit(*tag.split(":"))
    made.remove()
    layer = store.add_files({"old": b"from the layer"})

    async def work(backend):
        spec = SandboxSpec(image=tag, workdir="/testbed", layers=(layer,))
        async with await backend.create(spec) as box:
            seen = (await box.exec("cat src/a.py old; readlink env; pwd")).stdout
            await box.exec("echo 2 > src/a.py; rm env")
            changed = [(c.path, c.kind) for c in await box.diff()]
            await box.reset()
            return seen, changed, len(await box.diff()), (await box.exec("cat src/a.py")).stdout

    try:
        seen, changed, left, restored = run(work)
    finally:
        client.images.remove(tag, force=True)
        client.close()
    assert seen == b"x = 1\nfrom the layer/usr/bin/env\n/testbed\n"
    assert changed == [("env", ChangeKind.DELETED), ("src/a.py", ChangeKind.MODIFIED)]
    assert (left, restored) == (0, b"x = 1\n")


def test_reset_leaves_nothing_that_outlives_commands(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            await box.exec("ipcmk -Q; ipcmk -S 1; ipcmk -M 100; echo > /dev/shm/x; echo > /tmp/x")
            before = (await box.exec("ipcs | grep -c 0x")).stdout
            await box.reset()
            after = (await box.exec("ipcs | grep -c 0x; ls /tmp /dev/shm /dev/mqueue")).stdout
            return before, after

    assert run(work) == (b"3\n", b"0\n/dev/mqueue:\n\n/dev/shm:\n\n/tmp:\n")


def test_agent_cannot_end_or_stop_the_supervisor(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            await box.exec("kill -9 1; kill -STOP 1; kill -9 -1")
            await box.exec("kill -9 $PPID; sleep 1")
            await box.exec("kill -STOP $PPID; sleep 60", limits=SandboxLimits(wall_s=0.3))
            return (await box.exec("echo alive; ls -d /proc/[0-9]* | wc -l")).stdout

    assert run(work).startswith(b"alive\n")


def test_killing_does_not_wait_and_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "kill"})
        box = await backend.create(spec)
        command = asyncio.create_task(box.exec("trap '' TERM; while :; do sleep 1; done"))
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        await box.kill()
        took = time.perf_counter() - started
        await box.kill()
        with pytest.raises(SandboxError, match="was ended"):
            await command
        with pytest.raises(SandboxError, match="was killed"):
            await box.exec(["true"])
        return took, containers(label="test=kill")

    took, left = run(work)
    assert took < 5
    assert left == []


def test_sandbox_ends_itself_after_its_time(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, ttl_s=0.5, labels={"test": "ttl"})
        box = await backend.create(spec)
        with pytest.raises(SandboxError):
            await box.exec("sleep 60")
        for _ in range(100):
            if not containers(label="test=ttl"):
                return True
            await asyncio.sleep(0.05)
        return False

    assert run(work)


def test_cancelled_creation_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "cancel"})
        await (await backend.create(spec)).kill()
        for delay in (0.0, 0.01, 0.05, 0.1):
            creating = asyncio.create_task(backend.create(spec))
            await asyncio.sleep(delay)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        return containers(label="test=cancel"), backend.live

    assert run(work) == ([], {})


def test_containers_end_with_katgym_and_gc_removes_the_rest(docker_image):
    code = """
import asyncio, sys
from katgym.sandbox import SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend
async def main():
    backend = DockerBackend()
    await backend.create(SandboxSpec(image=sys.argv[1], labels={"test": "orphan"}))
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    child = subprocess.Popen([sys.executable, "-c", code, docker_image], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    (found,) = containers(label="test=orphan")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 10
    while containers(label="test=orphan") and time.monotonic() < until:
        time.sleep(0.05)
    assert containers(label="test=orphan") == []  # the supervisor saw the end of its stdin

    client = docker.from_env()
    try:
        # One that was created and never started has nobody inside to see that.
        orphan = found["Config"]["Labels"]
        client.api.create_container(docker_image, ["/bin/true"], labels=orphan)
        mine = labels.make_labels("mine", 60.0, {"test": "orphan-mine"})
        kept = client.api.create_container(docker_image, ["/bin/true"], labels=mine)

        async def work(backend):
            return await backend.gc()

        assert run(work) == 1
        assert containers(label="test=orphan") == []
        assert len(containers(label="test=orphan-mine")) == 1
        client.api.remove_container(kept["Id"])
    finally:
        client.close()


def test_image_without_python_is_said_so():
    client = docker.from_env()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    image = client.api.import_image_from_data(data.getvalue(), repository="katgym-test-empty")
    image_id = json.loads(image.splitlines()[-1])["status"]

    async def work(backend):
        await backend.create(SandboxSpec(image=image_id, labels={"test": "empty"}))

    try:
        with pytest.raises(UsageError, match="no python3 on its PATH"):
            run(work)
        assert containers(label="test=empty") == []
    finally:
        client.images.remove(image_id, force=True)
        client.close()


def test_missing_local_image_is_said_so():
    async def work(backend):
        await backend.create(SandboxSpec(image="sha256:" + "0" * 64))

    with pytest.raises(UsageError, match="has no image 'sha256:0"):
        run(work)


class _Registry(http.server.BaseHTTPRequestHandler):
    status = 429
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}'
        if self.path == "/v2/":
            self.send_response(200)
            body = b"{}"
        else:
            self.send_response(self.status)
            if self.status == 404:
                body = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [(429, SandboxError, "tried 2 times"), (404, UsageError, "neither here nor in its registry")],
)
def test_registry_that_refuses_is_a_fault_and_one_that_has_not_is_a_mistake(status, error, text):
    handler = type("Handler", (_Registry,), {"status": status, "asked": 0})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    engine = Engine(base_url=None, max_concurrency=1)
    try:
        with pytest.raises(error, match=text):
            name = f"127.0.0.1:{server.server_port}/some/image:tag"
            engine.pull(name, num_tries=2, first_wait_s=0.01)
        assert handler.asked > 0
    finally:
        engine.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_users_other_than_the_agent_are_refused(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            with pytest.raises(UsageError, match="as user 'agent' only, got 'root'"):
                await box.exec(["id"], user="root")

    run(work)


def test_many_are_created_at_once(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image)
        boxes = await asyncio.gather(*(backend.create(spec) for _ in range(12)))
        results = await asyncio.gather(
            *(box.exec(f"echo {i} > f; cat f") for i, box in enumerate(boxes))
        )
        return [result.stdout for result in results], backend.provenance()

    outputs, provenance = run(work)
    assert outputs == [b"%d\n" % i for i in range(12)]
    assert provenance["images"][docker_image]["id"] == docker_image
