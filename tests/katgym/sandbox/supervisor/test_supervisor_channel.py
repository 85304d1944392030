"""The host's channel against a peer that breaks the rules, and the program's text."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest

from katgym.sandbox.base import SandboxError
from katgym.sandbox.supervised.bundle import SUPERVISOR_MODULES, bundle
from katgym.sandbox.supervised.channel import MAX_HEADER_BYTES, Channel
from katgym.sandbox.supervisor.program import LENGTHS


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[Channel, socket.socket]]:
    """Yield a channel, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with theirs:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: Channel("sandbox odd"), sock=ours)
        yield channel, theirs


def frame(reply: object, payload: bytes = b"", claimed: int | None = None) -> bytes:
    header = json.dumps(reply).encode()
    size = len(payload) if claimed is None else claimed
    return LENGTHS.pack(len(header), size) + header + payload


def test_frame_that_breaks_the_rules_ends_the_channel(subtests: pytest.Subtests) -> None:
    answers = (
        (frame({"id": 1}, claimed=101), "sent 101 bytes"),
        (frame({"id": 1}, claimed=1 << 31), "sent 2147483648 bytes"),
        (LENGTHS.pack(MAX_HEADER_BYTES + 1, 0), "breaks the rules"),
        (frame({"id": 7}), "breaks the rules"),
        (frame({"id": [1]}), "breaks the rules"),
        (frame({}), "breaks the rules"),
        (frame([1, 2]), "breaks the rules"),
        (LENGTHS.pack(5, 0) + b"{nope", "breaks the rules"),
        (LENGTHS.pack(40_000, 0) + b"[" * 40_000, "breaks the rules"),
    )

    async def play() -> None:
        for answer, text in answers:
            with subtests.test(answer=answer[:40]):
                async with opened() as (channel, theirs):
                    theirs.sendall(answer)
                    with pytest.raises(SandboxError, match=text):
                        await channel.request("ping", max_reply_bytes=100, timeout_s=300)
                    assert not channel.is_open

    asyncio.run(play())


def test_answer_that_never_comes_ends_the_channel() -> None:
    async def play() -> None:
        async with opened() as (channel, _):
            with pytest.raises(SandboxError, match=r"did not answer 'ping' within 0.05 s"):
                await channel.request("ping", timeout_s=0.05)
            with pytest.raises(SandboxError, match="did not answer"):
                await channel.request("ping")

    asyncio.run(play())


def test_replies_find_their_requests_in_any_order_and_any_pieces() -> None:
    async def play() -> list[bytes]:
        async with opened() as (channel, theirs):
            asked = [asyncio.create_task(channel.request("ping")) for _ in range(3)]
            await asyncio.sleep(0)
            for byte in b"".join(frame({"id": n}, b"%d" % n) for n in (2, 3, 1)):
                theirs.send(bytes([byte]))
                await asyncio.sleep(0)
            replies = await asyncio.gather(*asked)
            channel.close()
            return [payload for _, payload in replies]

    assert asyncio.run(play()) == [b"1", b"2", b"3"]


def test_modules_inside_need_python_3_8_and_nothing_else() -> None:
    own = "katgym.sandbox.supervisor"
    allowed = {own, f"{own}.change_list", *SUPERVISOR_MODULES}
    foreign = set()
    for name in (*allowed - {own}, f"{own}.baseline", "katgym.sandbox.docker_engine.inside"):
        package, _, module = name.rpartition(".")
        source = (files(package) / f"{module}.py").read_text()
        imported = set()
        for node in ast.walk(ast.parse(source, feature_version=(3, 8))):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        of_library = {n for n in imported if n.partition(".")[0] in sys.stdlib_module_names}
        foreign |= {f"{name}: {each}" for each in imported - of_library - allowed}
    assert foreign == set()


def test_bundle_loads_its_modules_in_order() -> None:
    text = bundle(main="print(sys.modules['katgym.sandbox.supervisor.program'].LENGTHS.size)")
    compile(text, "bundle", "exec")
    positions = [text.index(f"load({name!r}") for name in SUPERVISOR_MODULES]
    assert positions == sorted(positions)
