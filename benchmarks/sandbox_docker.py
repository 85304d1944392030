"""Containers as sandboxes: katgym's docker backend beside the Docker SDK on the same engine.

The two take turns, operation by operation, so that a busy machine is busy for both; p20/p50/p80
over the repeats as CSV. The SDK's exec is its `exec_run`, its reset a new container.

    .ci/docker_engine                                  # an engine and an image
    python benchmarks/sandbox_docker.py > sandbox_docker.csv
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import docker

from katgym.sandbox import LayerStore, SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend

HERE = Path(__file__).parent
COLUMNS = (
    *("library", "version", "metric", "unit", "repeats"),
    *("p20", "p50", "p80", "engine", "device", "python", "commit"),
)
NUM_FILES = 500
FILES = {f"pkg/f{i}.py": b"x = %d\n" % i for i in range(NUM_FILES)}
PAUSE_S = 0.1
DIRTY = "for i in $(seq 100); do echo edited > pkg/f$i.py; done; echo x > /tmp/x"


class Sdk:
    """The Docker SDK, as its documentation uses it."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.client = docker.from_env(timeout=120)

    def create(self) -> Any:
        """Create and start a container, and run its first command."""
        container = self.client.containers.create(
            self.image, ["sleep", "infinity"], network_mode="none", labels={"bench": "katgym"}
        )
        container.start()
        self.exec(container)
        return container

    def exec(self, container: Any) -> None:
        """Run `true`."""
        if container.exec_run(["true"]).exit_code != 0:
            raise RuntimeError("true failed")


class Times:
    """Seconds by (library, metric)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}

    async def measure(self, library: str, metric: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Await some work, keep how long it took, and return what it returned."""
        started = time.perf_counter()
        result = await work()
        self.rows.setdefault((library, metric), []).append(time.perf_counter() - started)
        return result


async def run(image: str, repeats: int, times: Times) -> None:
    """Take turns: lifecycle, then commands, resets, forks and diffs of live sandboxes."""
    sdk = Sdk(image)
    with tempfile.TemporaryDirectory() as folder:
        layer = LayerStore(folder).add_files(FILES)
        spec = SandboxSpec(image=image, layers=(layer,))
        backend = DockerBackend()
        try:
            await (await backend.create(spec)).kill()  # connects, and looks the image up
            for _ in range(repeats):
                await lifecycle(sdk, backend, spec, times)
            await live(sdk, backend, spec, times, repeats)
            await burst(sdk, backend, spec, times)
        finally:
            await backend.aclose()


async def lifecycle(sdk: Sdk, backend: DockerBackend, spec: SandboxSpec, times: Times) -> None:
    """Create, first command, end: once each."""

    async def first() -> Any:
        sandbox = await backend.create(spec)
        check((await sandbox.exec(["true"])).ok)
        return sandbox

    container = await times.measure(
        "docker-sdk", "create and first exec", lambda: asyncio.to_thread(sdk.create)
    )
    sandbox = await times.measure("katgym", "create and first exec", first)
    await times.measure(
        "docker-sdk", "end", lambda: asyncio.to_thread(lambda: container.remove(force=True))
    )
    await times.measure("katgym", "end", sandbox.kill)


async def live(
    sdk: Sdk, backend: DockerBackend, spec: SandboxSpec, times: Times, repeats: int
) -> None:
    """Commands and everything else in a container that lives."""
    container = await asyncio.to_thread(sdk.create)
    sandbox = await backend.create(spec)
    try:
        for _ in range(repeats):
            # The engine goes on working after its own exec has returned.
            await asyncio.sleep(PAUSE_S)
            for _ in range(5):
                await times.measure(
                    "docker-sdk", "exec of true", lambda: asyncio.to_thread(sdk.exec, container)
                )
            await asyncio.sleep(PAUSE_S)
            for _ in range(5):
                result = await times.measure(
                    "katgym", "exec of true", lambda: sandbox.exec(["true"])
                )
                check(result.ok)
        for _ in range(repeats):
            check((await sandbox.exec(DIRTY)).ok)
            diff = await times.measure("katgym", "diff of 100 of 500 files", sandbox.diff)
            check(len(diff) == 100)
            await times.measure("katgym", "reset of 100 of 500 files", sandbox.reset)
            check(len(await sandbox.diff()) == 0)

            async def again(old: Any = container) -> Any:
                await asyncio.to_thread(lambda: old.remove(force=True))
                return await asyncio.to_thread(sdk.create)

            container = await times.measure("docker-sdk", "reset by a new container", again)
        for _ in range(max(3, repeats // 4)):
            (fork,) = await times.measure("katgym", "fork", sandbox.fork)
            check((await fork.exec(["true"])).ok)
            await fork.kill()
    finally:
        await asyncio.to_thread(lambda: container.remove(force=True))


async def burst(sdk: Sdk, backend: DockerBackend, spec: SandboxSpec, times: Times) -> None:
    """Twenty created at once, three times, per container."""
    for _ in range(3):
        made: list[Any] = []

        async def theirs(made: list[Any] = made) -> None:
            made += await asyncio.gather(*(asyncio.to_thread(sdk.create) for _ in range(20)))

        await times.measure("docker-sdk", "20 at once: create and first exec", theirs)
        await asyncio.gather(*(asyncio.to_thread(c.remove, force=True) for c in made))

        async def ours() -> Any:
            boxes = await asyncio.gather(*(backend.create(spec) for _ in range(20)))
            results = await asyncio.gather(*(box.exec(["true"]) for box in boxes))
            check(all(result.ok for result in results))
            return boxes

        boxes = await times.measure("katgym", "20 at once: create and first exec", ours)
        await asyncio.gather(*(box.kill() for box in boxes))


def check(is_right: bool) -> None:
    """Raise if a measured operation did not do its work."""
    if not is_right:
        raise RuntimeError("a measured operation did not do its work")


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="default: the one of .ci/docker_engine")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    root = HERE.parent
    engine_script = [str(root / ".ci" / "docker_engine")]
    image = args.image or subprocess.check_output(engine_script, text=True).strip()
    times = Times()
    asyncio.run(run(image, args.repeats, times))
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True
    ).strip()
    engine = docker.from_env().version()["Version"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (library, metric), seconds in times.rows.items():
        low, middle, high = (
            f"{value * 1e3:.2f}"
            for value in (
                statistics.quantiles(seconds, n=10, method="inclusive")[i] for i in (1, 4, 7)
            )
        )
        release = version("docker") if library == "docker-sdk" else version("katgym")
        device = f"{platform.machine()}, {os.cpu_count()} cores"
        where = (f"docker {engine}", device, platform.python_version(), commit)
        writer.writerow((library, release, metric, "ms", len(seconds), low, middle, high, *where))


if __name__ == "__main__":
    main()
