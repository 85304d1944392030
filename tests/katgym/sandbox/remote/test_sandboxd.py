"""A real `katgym sandboxd` process, spoken to over loopback."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec
import pytest
from sandboxd_process import TOKEN, Server, running_sandboxd
from waiting import wait_until_async

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.sandbox import (
    Sandbox,
    SandboxError,
    SandboxSpec,
    SandboxUnavailableError,
    backend,
    layer_store,
)
from katgym.sandbox.conformance import run_conformance
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.operations import Read
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.client import RemoteBackend
from katgym.sandbox.remote.config import SandboxdConfig
from katgym.sandbox.venvs import ensure_venv

T = TypeVar("T")


def _backend(server: Server, token: str = TOKEN) -> RemoteBackend:
    made = backend(f"sandboxd:{server.url}", token=token)
    assert isinstance(made, RemoteBackend)
    return made


def _play(server: Server, play: Callable[[RemoteBackend], Awaitable[T]]) -> T:
    async def run() -> T:
        made = _backend(server)
        try:
            return await play(made)
        finally:
            await made.aclose()

    return asyncio.run(run())


def _failures(server: Server, only: tuple[str, ...]) -> list[tuple[str, str]]:
    spec = SandboxSpec(python=ensure_venv(()))
    report = _play(server, lambda made: run_conformance(made, spec=spec, only=only))
    assert [r.name for r in report.results if r.passed is None] == []
    return [(r.name, r.detail) for r in report.failures]


@pytest.mark.slow
def test_it_conforms_in_what_the_wire_could_spoil(server: Server) -> None:
    only = (
        "command.environment", "command.arguments", "command.unknown_users", "stream.binary",
        "file.odd_names", "file.what_cannot_be_read", "diff.odd_names", "call.reports",
    )  # fmt: skip
    assert _failures(server, only) == []


@pytest.mark.slow
def test_it_conforms(server: Server) -> None:
    assert _failures(server, ()) == []


def test_a_wrong_token_and_a_missing_server_are_told_apart(server: Server) -> None:
    async def ask(made: RemoteBackend) -> None:
        try:
            await made.create(SandboxSpec())
        finally:
            await made.aclose()

    with pytest.raises(SandboxUnavailableError, match="refuses the token"):
        asyncio.run(ask(_backend(server, "another token of sixteen characters")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can
        nobody = replace(server, url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(SandboxUnavailableError, match="is `katgym sandboxd` running there"):
            asyncio.run(ask(_backend(nobody)))
    assert httpx.post(server.url + "/v1/gc", timeout=300).status_code == 401
    assert httpx.get(server.url + "/", timeout=300).status_code == 404


def test_a_backend_needs_a_url_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KATGYM_SANDBOXD_TOKEN", raising=False)
    with pytest.raises(UsageError, match="is named like"):
        RemoteBackend("", token=TOKEN)
    with pytest.raises(UsageError, match="KATGYM_SANDBOXD_TOKEN"):
        RemoteBackend("http://x", token="")


def test_interpreters_are_those_the_server_offers(server: Server) -> None:
    async def play(made: RemoteBackend) -> None:
        notes = (await made.enforcement()).notes
        assert f"interpreters: {ensure_venv(())}" in notes
        offered = r"offers no interpreter '/usr/bin/python3'; it offers '"
        with pytest.raises(UsageError, match=offered):
            await made.create(SandboxSpec(python="/usr/bin/python3"))

    _play(server, play)


def test_a_full_server_says_so_and_a_repeated_request_makes_one(server: Server) -> None:
    async def run() -> None:
        made = _backend(server)
        same = wire.CreateRequest(
            client=made.client_id, request_id="once", spec=SandboxSpec(ttl_s=3000.0)
        )
        names = await asyncio.gather(*(made.ask("/sandboxes", str, same) for _ in range(4)))
        assert len(set(names)) == 1
        fork = wire.ForkRequest(client=made.client_id, request_id="fork", num=2)
        path = f"/sandboxes/{names[0]}/fork"
        forks = await asyncio.gather(*(made.ask(path, list[str], fork) for _ in range(4)))
        assert len({*forks[0]}) == 2 and all(found == forks[0] for found in forks)
        boxes = [await made.create(SandboxSpec()) for _ in range(3)]
        for work in (made.create(SandboxSpec()), boxes[0].fork()):
            with pytest.raises(SandboxError, match="has 6 of at most 6 sandboxes"):
                await work
        await boxes[0].kill()
        await (await made.create(SandboxSpec())).kill()
        await made.aclose()
        other = _backend(server)  # whatever the first one left would be in its way
        assert len(await asyncio.gather(*(other.create(SandboxSpec()) for _ in range(6)))) == 6
        await other.aclose()

    asyncio.run(run())


def test_what_a_cancelled_caller_asked_for_is_killed(server: Server) -> None:
    async def play(made: RemoteBackend) -> None:
        first = await made.create(SandboxSpec())
        for delay_s in (0.0, 0.002, 0.004, 0.008, 0.016, 0.03):
            asking = [
                asyncio.create_task(first.fork()),
                asyncio.create_task(made.create(first.spec)),
            ]
            await asyncio.sleep(delay_s)
            for task in asking:
                task.cancel()
            for found in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(found, Sandbox):
                    await found.kill()
                elif isinstance(found, list):
                    await found[0].kill()
        await asyncio.gather(*made._undoing)
        boxes = await first.fork(5)  # with the first one that is all the server may have
        assert len(boxes) == 5

    _play(server, play)


def test_a_layer_that_the_server_lost_is_sent_again_and_a_wrong_one_refused(
    server: Server, subtests: pytest.Subtests
) -> None:
    async def play(made: RemoteBackend) -> None:
        layer = layer_store().add_files({"lost": os.urandom(8)})
        for _ in range(2):
            async with await made.create(SandboxSpec(layers=(layer,))) as box:
                assert (await box.exec("cat lost")).stdout == (layer.path / "lost").read_bytes()
            shutil.rmtree(server.layers / layer.digest)
        leaves = "not a relative path"
        refused = {"a": "have digest", "../x": leaves, "a/../../x": leaves, "/x": leaves}
        for path, text in refused.items():
            with subtests.test(path=path), pytest.raises(UsageError, match=text):
                files = {path: FileEntry(content=b"x")}
                await made.ask(f"/layers/{'0' * 64}", bool, files)

    _play(server, play)


def test_a_request_that_announces_too_much_is_refused_unread(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(
            f"POST /v1/gc HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
            "content-length: 99999999999\r\n\r\n".encode()
        )
        answer = b""
        while b" bytes" not in answer:  # head and body may come apart
            part = connection.recv(10_000)
            assert part, answer
            answer += part
    assert b" 400 " in answer and b"a request has at most 268435456 bytes" in answer


@pytest.mark.slow
def test_a_server_that_dies_fails_what_runs_and_leaves_nothing(tmp_path: Path) -> None:
    async def run(server: Server, number: signal.Signals) -> None:
        made = _backend(server)
        box = await made.create(SandboxSpec())
        mark = f"7{os.getpid()}"
        running = asyncio.create_task(box.exec(f"setsid sleep {mark} & sleep {mark}"))
        await wait_until_async(lambda: running.done() or len(_sleeping(mark)) == 2, "two to sleep")
        server.process.send_signal(number)
        with pytest.raises(SandboxError) as caught:
            await running
        assert "Timeout" not in str(caught.value)  # the end was seen
        assert server.process.wait(300) == -number
        await wait_until_async(lambda: not _sleeping(mark), "all that the server had to end")
        with pytest.raises(SandboxUnavailableError, match="cannot be reached"):
            await box.read("x")
        await box.kill()
        await made.aclose()

    for number in (signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / number.name
        folder.mkdir()
        with running_sandboxd(folder) as server:
            asyncio.run(run(server, number))
        assert TOKEN not in (folder / "log").read_text()


def _sleeping(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_body_that_makes_no_sense_is_a_usage_error(subtests: pytest.Subtests) -> None:
    odd = Read(path=os.fsdecode(b"\xff\xfe\n"))
    assert wire.decode(wire.encode(odd), Read) == odd
    bodies = (
        b"\x91" * 200_000 + b"\xc0",  # lists in lists
        b"\x81\xa4path" * 5_000 + b"\xc0",
        b"\x81\x80\x01",  # a map as a key
        b"\x81\xa4path\xa7\x00raw\x00\xc4\x80",  # marked as Latin-1, and none
        msgspec.msgpack.encode({"path": "a", "max_bytes": -1}),
        msgspec.msgpack.encode({"path": "a", "max_bytes": float("inf")}),
        msgspec.msgpack.encode({"path": "a", "max_bytes": 10**17}) + b"more",
    )
    for body in bodies:
        with subtests.test(body=body[:30]), pytest.raises(UsageError, match="not a Read"):
            wire.decode(body, Read)


def test_a_time_that_is_none_is_refused(server: Server) -> None:
    async def play(made: RemoteBackend) -> None:
        async with await made.create(SandboxSpec()) as sandbox:
            for limits in ({"wall_s": -1.0}, {"wall_s": math.inf}, {"cpu_s": math.nan}):
                body = {"argv": ["true"], "limits": limits}
                with pytest.raises(UsageError, match="finite number"):
                    await made.ask(f"/sandboxes/{sandbox.id}/exec", bool, body)

    _play(server, play)


def test_a_server_that_could_not_serve_is_not_configured() -> None:
    for name, value in (("lease_s", math.nan), ("lease_s", 0), ("max_sandboxes", 0)):
        with pytest.raises(UsageError, match=name):
            SandboxdConfig(**{name: value})  # type: ignore[arg-type]


def test_listening_to_others_needs_a_token_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("KATGYM_SANDBOXD_TOKEN", raising=False)
    assert main(["sandboxd", "--host", "0.0.0.0"]) == 2
    assert "name a token of your own" in capsys.readouterr().err
    assert main(["sandboxd", "--token-file", str(tmp_path / "none")]) == 2
    (tmp_path / "short").write_text("short")
    assert main(["sandboxd", "--token-file", str(tmp_path / "short")]) == 2
    assert "at least 16 characters" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(server: Server) -> None:
    command = [sys.executable, "-m", "katgym", "sandboxd", "--port", server.url.rpartition(":")[2]]
    env = {**os.environ, "KATGYM_SANDBOXD_TOKEN": TOKEN}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "cannot listen on '127.0.0.1'" in done.stderr and "Traceback" not in done.stderr
