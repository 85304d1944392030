"""Fleets of real `katgym sandboxd` processes: placing, losing daemons, finding them again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sandboxd_process import TOKEN, Server, running_sandboxd
from waiting import wait_until, wait_until_async

import katgym
from katgym import RolloutStatus, Task, UsageError, assistant
from katgym.cli.main import main
from katgym.environment.env import Env
from katgym.environment.messages import Message
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.sandbox import (
    Sandbox,
    SandboxError,
    SandboxSpec,
    SandboxUnavailableError,
    backend,
    close_shared_backends,
    layer_store,
    shared_backend,
)
from katgym.sandbox.remote import daemon, wire
from katgym.sandbox.remote.client import RemoteBackend
from katgym.sandbox.remote.fleet import FleetBackend, FleetLink
from katgym.testing import ScriptedPolicy

NUM_TASKS = int(os.environ.get("KATGYM_TEST_FLEET_ROLLOUTS", "60"))
SLEEP = {"cmd": "sleep 0.3; echo done"}


class Fleet:
    """Daemons that are killed and started again at their ports."""

    def __init__(self, folder: Path, num: int) -> None:
        self.folder, self.num_kills = folder, 0
        self.running: dict[str, contextlib.ExitStack] = {}
        self.servers: dict[str, Server] = {}
        for number in range(num):
            self.start(str(number))

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers.values()]

    def start(self, name: str) -> None:
        port = self.servers[name].url.rsplit(":", 1)[1] if name in self.servers else "0"
        stack = contextlib.ExitStack()
        self.servers[name] = stack.enter_context(running_sandboxd(self.folder / name, port=port))
        self.running[name] = stack

    def kill(self, name: str) -> None:
        self.num_kills += 1
        self.servers[name].process.kill()
        self.running.pop(name).close()

    def close(self) -> None:
        for stack in self.running.values():
            stack.close()

    async def num_left(self) -> list[int]:
        """Return how many sandboxes each daemon that runs has."""
        found = []
        for name in self.running:
            made = RemoteBackend(self.servers[name].url, token=TOKEN)
            found.append((await made.ask("/status", wire.Status)).num_sandboxes)
            await made.aclose()
        return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon hangs in the test: one that is slow to answer is waited for."""
    monkeypatch.setattr(daemon, "_PROBE_TIMEOUT_S", 300.0)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("KATGYM_SANDBOXD_TOKEN", TOKEN)
    made = Fleet(tmp_path, 3)
    yield made
    close_shared_backends()
    made.close()


def play(places: str, work: Callable[[FleetBackend], Awaitable[None]]) -> None:
    async def run() -> None:
        made = backend(f"sandboxd:{places}", token=TOKEN)
        assert isinstance(made, FleetBackend)
        try:
            await asyncio.wait_for(work(made), 1200)
        finally:
            await made.aclose()

    asyncio.run(run())


def where(box: Sandbox) -> str:
    """Return the daemon of a sandbox; a shared backend's link holds the fleet's."""
    link: Any = box.link if isinstance(box.link, FleetLink) else box.link._inner  # type: ignore[attr-defined]
    return str(link._daemon.url)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_sandboxes_go_where_their_layers_are_until_that_is_much_fuller(fleet: Fleet) -> None:
    specs = [
        SandboxSpec(layers=(layer_store().add_files({"name": bytes([65 + n])}),)) for n in range(2)
    ]

    async def work(made: FleetBackend) -> None:
        assert (await made.enforcement()).level.startswith("local: ")
        boxes = [await made.create(specs[0]) for _ in range(3)]
        assert len({where(box) for box in boxes[:2]}) == 1
        boxes += [await made.create(specs[n % 2]) for n in range(15)]
        used = [sum(where(box) == url for box in boxes) for url in fleet.urls]
        assert used == [6, 6, 6]  # what each said it has room for
        assert [await box.read("name") for box in boxes[-2:]] == [b"B", b"A"]
        waiting = asyncio.create_task(made.create(specs[0]))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await boxes[4].kill()
        assert await (await waiting).read("name") == b"A"
        beside = next(box for box in boxes[1:4] if where(box) == where(boxes[0]))
        await beside.kill()
        (fork,) = await boxes[0].fork()
        assert await fork.read("name") == b"A"

    play(",".join(fleet.urls), work)
    assert asyncio.run(fleet.num_left()) == [0, 0, 0]


@pytest.mark.slow
def test_a_daemon_that_hangs_is_lost_soon_and_used_again(fleet: Fleet) -> None:
    async def work(made: FleetBackend) -> None:
        boxes = [await made.create(SandboxSpec()) for _ in range(6)]
        hung = fleet.servers["1"]
        mine = [box for box in boxes if where(box) == hung.url]
        commands = [asyncio.create_task(box.exec("touch /tmp/up; sleep 3600")) for box in mine]
        for box in mine:
            while (await box.exec("test -e /tmp/up")).exit_code:
                await asyncio.sleep(0.02)
        os.kill(hung.process.pid, signal.SIGSTOP)
        try:
            for command in commands:
                with pytest.raises(SandboxUnavailableError, match="was lost: no answer"):
                    await command
            with pytest.raises(SandboxUnavailableError, match="was lost"):
                await mine[0].read("x")
            assert hung.url not in [where(await made.create(SandboxSpec())) for _ in range(3)]
        finally:
            os.kill(hung.process.pid, signal.SIGCONT)
        while (found := where(await made.create(SandboxSpec()))) != hung.url:
            assert found
            await asyncio.sleep(0.2)
        while (await fleet.num_left())[1] != 1:  # what it had of ours goes, though it never died
            await asyncio.sleep(0.2)

    play(",".join(fleet.urls), work)


class Workshop(Env):
    """Runs commands in a sandbox of its fleet; the first task's go on until `is_over`."""

    splits = ("train",)
    working: ClassVar[list[Sandbox]] = []
    is_over: ClassVar[bool] = False

    def __init__(self, *, sandbox: str, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.name, self.box = sandbox, None  # type: ignore[var-annotated]
        self.outputs: list[str] = []

    def load_tasks(self, split: str) -> Sequence[Task]:
        return [Task(task_id=f"t{n}", prompt="work") for n in range(NUM_TASKS)]

    async def setup(self) -> None:
        self.outputs = []
        self.box = await shared_backend(self.name).create(SandboxSpec())

    async def teardown(self) -> None:
        box, self.box = self.box, None
        if box is not None:
            await box.kill()

    @katgym.tool(timeout_s=1200.0)
    async def sh(self, cmd: str) -> str:
        """Run a command."""
        assert self.box is not None
        self.working.append(self.box)
        try:
            output = (await self.box.exec(cmd)).text()
            while self.task.task_id == "t0" and not self.is_over:
                output = (await self.box.exec(cmd)).text()
        finally:
            self.working.remove(self.box)
        self.outputs.append(output)
        return output

    async def reply(self, message: Message) -> str | None:
        self.finish("enough")
        return None

    @katgym.scorer()
    def has_worked(self) -> float:
        """Every command ran to its end."""
        return float(self.outputs == ["done\n"] * 4)


@pytest.mark.slow
def test_no_rollout_is_lost_when_daemons_are_killed_at_random(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workshop, "working", [])
    monkeypatch.setattr(Workshop, "is_over", False)
    places = tmp_path / "hosts.txt"
    places.write_text("\n".join(fleet.urls) + "\n# all of them\n")
    policy = ScriptedPolicy([assistant("", [("sh", SLEEP)])] * 4 + [assistant("over")])
    env = Workshop(sandbox=f"sandboxd:@{places}")
    engine = RolloutEngine(
        policy, config=EngineConfig(max_concurrency=8, max_retries=8, retry_delay_s=0.05)
    )
    tasks = [f"t{n}" for n in range(NUM_TASKS)]
    requests = [RolloutRequest(env=env, task_id=task, split="train") for task in tasks]

    def at_work() -> list[str]:
        """Return the daemons that run commands, where another is left to go on with."""
        urls = {where(box) for box in Workshop.working} if len(fleet.running) > 1 else set()
        return [name for name in fleet.running if fleet.servers[name].url in urls]

    async def kill_at_random() -> None:
        draw, starting = random.Random(3), []
        try:
            for _ in range(5):
                name = draw.choice(await wait_until_async(at_work, "daemons at work"))
                await asyncio.to_thread(fleet.kill, name)
                starting.append(asyncio.create_task(asyncio.to_thread(fleet.start, name)))
                await asyncio.sleep(draw.uniform(0.2, 2))
        finally:
            Workshop.is_over = True
        await asyncio.gather(*starting)

    async def run() -> list[katgym.Rollout]:
        killing = asyncio.create_task(kill_at_random())
        rollouts = [rollout async for _, rollout in engine.run(requests)]
        await killing
        return rollouts

    rollouts = asyncio.run(asyncio.wait_for(run(), 3600))
    assert fleet.num_kills == 5
    assert len(rollouts) == NUM_TASKS
    assert [r for r in rollouts if r.status is not RolloutStatus.TERMINATED] == []
    assert {r.reward.value for r in rollouts} == {1.0}
    assert sum(r.num_retries for r in rollouts) > 0
    print(f"{fleet.num_kills} kills, {sum(r.num_retries for r in rollouts)} rollouts begun again")
    wait_until(lambda: asyncio.run(fleet.num_left()) == [0, 0, 0], "every sandbox to go")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_file_is_read_again_when_it_changes(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = tmp_path / "hosts.txt"
    places.write_text(fleet.urls[0])

    async def until(made: FleetBackend, url: str) -> Sandbox:
        while where(box := await made.create(SandboxSpec())) != url:
            await box.kill()
            await asyncio.sleep(0.1)
        return box

    async def work(made: FleetBackend) -> None:
        old = await made.create(SandboxSpec())
        places.write_text(f"  {fleet.urls[1]}/  # a new one\n\n")
        await until(made, fleet.urls[1])
        assert (await old.exec("echo here")).text() == "here\n"
        await old.kill()
        for text in ("", "nonsense\n"):
            places.write_text(text)
            await asyncio.sleep(1.1)
            await until(made, fleet.urls[1])
        places.unlink()
        await asyncio.sleep(1.1)
        await until(made, fleet.urls[1])

    play(f"@{places}", work)
    for text in ("names no sandboxd", "got 'nonsense'", "cannot be read: [Errno 2]"):
        assert f"the fleet stays as it is: {text}" in caplog.text or text in caplog.text


@pytest.fixture
def dead_urls() -> Iterator[list[str]]:
    """Return addresses at which nobody listens, and nobody else can."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        yield [f"http://127.0.0.1:{taken.getsockname()[1]}" for taken in (one, two)]


def test_a_fleet_of_nobody_says_who_cannot_be_reached(dead_urls: list[str]) -> None:
    first, second = dead_urls

    async def work(made: FleetBackend) -> None:
        with pytest.raises(SandboxUnavailableError) as caught:
            await made.create(SandboxSpec())
        assert f"{first}: sandboxd at {first} cannot be reached" in str(caught.value)
        assert f"; {second}: " in str(caught.value)
        with pytest.raises(SandboxUnavailableError, match="can be used"):
            await made.enforcement()

    play(f"{first},{second}", work)


def test_a_list_that_is_none_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "empty").write_text("# nobody yet\n\n")
    refused = {
        "http://a:1,http://a:1/": "names sandboxd 'http://a:1' twice",
        "http://a:1,b:2": "a sandboxd is named like 'sandboxd:http://HOST:PORT', got 'b:2'",
        "http://a:1,": "got ''",
        "@": "the list of daemons '.' cannot be read",
        f"@{tmp_path}/none": "none' cannot be read: .*No such file",
        f"@{tmp_path}/empty": "empty' names no sandboxd; write a URL",
    }
    for places, text in refused.items():
        with subtests.test(places=places), pytest.raises(UsageError, match=text):
            backend(f"sandboxd:{places}", token=TOKEN)


def test_the_command_line_names_a_fleet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: Server,
    dead_urls: list[str],
) -> None:
    monkeypatch.setenv("KATGYM_SANDBOXD_TOKEN", TOKEN)
    (tmp_path / "hosts").write_text(f"{server.url}\n{dead_urls[0]}\n")
    assert main(["sandbox", "list", f"sandboxd:@{tmp_path / 'hosts'}"]) == 0
    assert "local: " in capsys.readouterr().out
    assert main(["sandbox", "list", f"sandboxd:@{tmp_path / 'none'}"]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.usefixtures("patient")
def test_making_one_that_fails_everywhere_says_why(server: Server, dead_urls: list[str]) -> None:
    async def work(made: FleetBackend) -> None:
        with pytest.raises(UsageError, match="offers no interpreter"):
            await made.create(SandboxSpec(python="/bin/none"))
        with pytest.raises((UsageError, SandboxError), match="image"):
            await made.create(SandboxSpec(image="x"))
        assert await (await made.create(SandboxSpec())).exec("true")

    play(f"{server.url},{dead_urls[0]}", work)
