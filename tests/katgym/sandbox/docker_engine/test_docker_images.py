"""Images that hold a workspace, lack Python, are missing, or are refused by their registry."""

from __future__ import annotations

import http.server
import io
import json
import tarfile
import threading

import docker
import pytest
from docker_play import containers, run

from katgym.errors import UsageError
from katgym.sandbox import ChangeKind, SandboxError, SandboxSpec
from katgym.sandbox.docker_engine.engine import Engine

pytestmark = pytest.mark.docker


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
