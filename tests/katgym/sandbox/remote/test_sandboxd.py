"""A real `katgym sandboxd` process, spoken to over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.sandbox import SandboxSpec, SandboxUnavailableError, backend
from katgym.sandbox.conformance import CHECKS, run_conformance
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.client import RemoteBackend

TOKEN = "a token of sixteen characters or more"


@dataclass
class Server:
    url: str
    process: subprocess.Popen[bytes]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sandboxd")
    (folder / "token").write_text(TOKEN + "\n")
    port = _free_port()
    command = [sys.executable, "-m", "katgym.cli.main", "sandboxd", "--port", str(port)]
    command += ["--token-file", str(folder / "token"), "--max-sandboxes", "6"]
    # A layer store of its own, so that layers really travel.
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.post(url)
            break
        except httpx.TransportError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    yield Server(url, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) in (0, 130, -signal.SIGINT)


def _backend(server: Server, token: str = TOKEN) -> RemoteBackend:
    made = backend(f"sandboxd:{server.url}", token=token)
    assert isinstance(made, RemoteBackend)
    return made


def test_it_conforms(server: Server) -> None:
    async def run() -> list[tuple[str, str]]:
        made = _backend(server)
        report = await run_conformance(made)
        await made.aclose()
        assert len(report.results) == len(CHECKS)
        skipped = [r.name for r in report.results if r.passed is None]
        assert skipped == ["users"]
        return [(r.name, r.detail) for r in report.results if r.passed is False]

    assert asyncio.run(run()) == []


def test_a_wrong_token_and_a_missing_server_are_told_apart(server: Server) -> None:
    async def ask(made: RemoteBackend) -> None:
        try:
            await made.create(SandboxSpec())
        finally:
            await made.aclose()

    with pytest.raises(SandboxUnavailableError, match="refuses the token"):
        asyncio.run(ask(_backend(server, "another token of sixteen characters")))
    nobody = Server(f"http://127.0.0.1:{_free_port()}", server.process)
    with pytest.raises(SandboxUnavailableError, match="is `katgym sandboxd` running there"):
        asyncio.run(ask(_backend(nobody)))
    assert httpx.post(server.url + "/v1/gc").status_code == 401
    assert httpx.get(server.url + "/").status_code == 404


@pytest.mark.parametrize(
    ("url", "token", "text"),
    [("", TOKEN, "is named like"), ("http://x", "", "KATGYM_SANDBOXD_TOKEN")],
)
def test_a_backend_needs_a_url_and_a_token(
    url: str, token: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KATGYM_SANDBOXD_TOKEN", raising=False)
    with pytest.raises(UsageError, match=text):
        RemoteBackend(url, token=token)


def test_what_names_the_clients_machine_is_refused(server: Server) -> None:
    async def run() -> None:
        made = _backend(server)
        try:
            await made.create(SandboxSpec(python="/usr/bin/python3"))
        finally:
            await made.aclose()

    with pytest.raises(UsageError, match="takes no `python`"):
        asyncio.run(run())


def test_a_full_server_says_so_and_a_repeated_create_makes_one(server: Server) -> None:
    async def run() -> None:
        made = _backend(server)
        spec = wire.WireSpec(
            layers=(), workdir="/workspace", env={}, limits=SandboxSpec().limits, image=None,
            ttl_s=60.0, labels={},
        )  # fmt: skip
        same = wire.CreateRequest(client=made.client_id, request_id="once", spec=spec)
        names = await asyncio.gather(*(made.ask("/sandboxes", str, same) for _ in range(4)))
        assert len(set(names)) == 1
        boxes = [await made.create(SandboxSpec()) for _ in range(5)]
        with pytest.raises(SandboxUnavailableError.__mro__[1], match="at most 6"):
            await made.create(SandboxSpec())
        for box in boxes:
            await box.kill()
        await made.ask(f"/sandboxes/{names[0]}/kill", bool)
        await made.aclose()

    asyncio.run(run())


def test_a_layer_with_other_content_than_its_digest_is_refused(server: Server) -> None:
    async def run() -> None:
        made = _backend(server)
        try:
            files = [wire.LayerFile(path="a", content=b"x")]
            await made.ask(f"/layers/{'0' * 64}", bool, files)
        finally:
            await made.aclose()

    with pytest.raises(UsageError, match="have digest"):
        asyncio.run(run())


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x"])
def test_no_path_leaves_the_store(server: Server, path: str) -> None:
    async def run() -> None:
        made = _backend(server)
        try:
            files = [wire.LayerFile(path=path, content=b"x")]
            await made.ask(f"/layers/{'0' * 64}", bool, files)
        finally:
            await made.aclose()

    with pytest.raises(UsageError, match="not a relative path"):
        asyncio.run(run())


def test_odd_names_survive_the_wire() -> None:
    odd = os.fsdecode(b"\xff\xfe\n")
    value = wire.ReadRequest(path=odd)
    assert wire.decode(wire.encode(value), wire.ReadRequest) == value


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
