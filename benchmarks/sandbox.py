"""Latency, rate and memory of local sandboxes, with bare bubblewrap and mini-swe-agent beside them.

Every command's result is checked; a figure of a wrong result is not printed. Repeats of katgym and
of its peers are interleaved. CSV on standard output.

    python benchmarks/sandbox.py > sandbox.csv
    python benchmarks/sandbox.py --peer mini=VENV/bin/python      # has mini-swe-agent
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from katgym.sandbox import Sandbox, SandboxError, SandboxLimits, SandboxSpec, layer_store
from katgym.sandbox.local.backend import LocalBackend
from katgym.sandbox.local.local_link import LocalLink

COLUMNS = ("system", "figure", "unit", "n", "p20", "p50", "p80", "p99", "device", "load", "commit")
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
BWRAP += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
MINI = Path(__file__).parent / "peers" / "mini_swe_agent_peer.py"
NUM_LIVE = 200


class Table:
    """Rows of measurements, printed at the end."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.rows: list[dict[str, object]] = []
        self.samples: dict[tuple[str, str, str], list[float]] = {}

    def add(self, system: str, figure: str, unit: str, value: float) -> None:
        """Note one sample."""
        self.samples.setdefault((system, figure, unit), []).append(value)

    def write(self) -> None:
        """Print one row a figure."""
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        device = f"{platform.machine()} {os.cpu_count()} cores"
        for (system, figure, unit), values in self.samples.items():
            cuts = (
                statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else []
            )
            shown = [cuts[i - 1] if cuts else values[0] for i in (20, 50, 80, 99)]
            row = dict(zip(("p20", "p50", "p80", "p99"), (round(v, 3) for v in shown), strict=True))
            load = round(os.getloadavg()[0], 2)
            writer.writerow(
                {"system": system, "figure": figure, "unit": unit, "n": len(values), **row}
                | {"device": device, "load": load, "commit": commit}
            )


async def timed(table: Table, figure: str, num: int, work: Callable[[], Awaitable[object]]) -> None:
    """Measure an operation `num` times, in milliseconds."""
    for _ in range(num * table.scale):
        began = time.perf_counter()
        await work()
        table.add("katgym local", figure, "ms", (time.perf_counter() - began) * 1e3)


def spec_of_200_files() -> SandboxSpec:
    """Return what all sandboxes here are made from."""
    layer = layer_store().add_files({f"f{i}.txt": b"line\n" * 20 for i in range(200)})
    return SandboxSpec(layers=(layer,), limits=SandboxLimits(max_processes=64))


async def check_true(sandbox: Sandbox, command: list[str] | str = ("true",)) -> None:
    """Run a command that has to succeed."""
    result = await sandbox.exec(command if isinstance(command, str) else list(command))
    assert result.exit_code == 0, result


async def creating(table: Table, backend: LocalBackend, spec: SandboxSpec) -> None:
    """Create + first command, interleaved with bare bubblewrap."""
    for _ in range(60 * table.scale):
        began = time.perf_counter()
        sandbox = await backend.create(spec)
        await check_true(sandbox)
        table.add("katgym local", "create + first exec", "ms", (time.perf_counter() - began) * 1e3)
        await sandbox.kill()
        if shutil.which("bwrap"):
            began = time.perf_counter()
            subprocess.run([*BWRAP, "true"], check=True)
            spent = (time.perf_counter() - began) * 1e3
            table.add("bubblewrap", "create + first exec", "ms", spent)


async def in_a_live_one(table: Table, backend: LocalBackend, spec: SandboxSpec) -> None:
    """Exec, files, diff, reset, fork."""
    async with await backend.create(spec) as sandbox:
        await timed(table, "exec true", 200, lambda: check_true(sandbox))
        await timed(table, "exec bash -c", 100, lambda: check_true(sandbox, "echo hi"))
        await timed(table, "read", 100, lambda: sandbox.read("f1.txt"))
        await timed(table, "write", 100, lambda: sandbox.write("f1.txt", b"x"))
        await timed(table, "reset", 60, sandbox.reset)
        await check_true(sandbox, "for i in $(seq 0 99); do echo new > f$i.txt; done")
        assert len(await sandbox.diff()) == 100
        await timed(table, "diff of 100 files", 60, sandbox.diff)
        await timed(table, "snapshot", 30, sandbox.snapshot)
        forks: list[Sandbox] = []

        async def fork() -> None:
            forks.extend(await sandbox.fork())

        await timed(table, "fork", 40, fork)
        assert len(await forks[0].diff()) == 100
        for made in forks:
            await made.kill()


async def many(table: Table, backend: LocalBackend, spec: SandboxSpec) -> None:
    """Rate of creation, and memory of many that live."""

    async def come_and_go() -> None:
        await (await backend.create(spec)).kill()

    for _ in range(3 * table.scale):
        began = time.perf_counter()
        await asyncio.gather(*(come_and_go() for _ in range(200)))
        table.add("katgym local", "creates", "1/s", 200 / (time.perf_counter() - began))
    live = [await backend.create(spec) for _ in range(NUM_LIVE)]
    for sandbox in live:
        await check_true(sandbox)
        table.add("katgym local", f"memory of each of {NUM_LIVE}", "MiB PSS", pss_mib(sandbox))
    for sandbox in live:
        await sandbox.kill()


def local_link(sandbox: Sandbox) -> LocalLink:
    """Return the link of a local sandbox."""
    assert isinstance(sandbox.link, LocalLink)
    return sandbox.link


def pss_mib(sandbox: Sandbox) -> float:
    """Return the proportional memory of a sandbox's supervisor and its living children."""
    total = 0
    pid_1 = local_link(sandbox).pid
    for pid in [pid_1, *children(pid_1)]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended, not reaped yet: it has none
            continue
        total += sum(int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:"))
    assert total
    return total / 1024


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def fork_bombs(table: Table, backend: LocalBackend, spec: SandboxSpec) -> None:
    """From the kill of a sandbox full of a fork bomb until none of its processes is left."""
    for _ in range(40 * table.scale):
        sandbox = await backend.create(spec)
        group = local_link(sandbox).group
        bomb = asyncio.create_task(sandbox.exec("b() { b | b & }; b; sleep 60"))
        await asyncio.sleep(0.2)
        assert group is not None, "needs a cgroup to see who is left"
        procs = group.folders["pids"] / "cgroup.procs"
        assert len(procs.read_text().split()) > 30
        began = time.perf_counter()
        await sandbox.kill()
        while procs.exists() and procs.read_text().strip():
            await asyncio.sleep(0)
        table.add("katgym local", "kill a fork bomb", "ms", (time.perf_counter() - began) * 1e3)
        try:
            await bomb
        except SandboxError:
            continue
        raise AssertionError("the bomb went on after its sandbox was killed")


def measure_peers(table: Table, peers: list[str]) -> None:
    """Run the peers' script in their own environments."""
    for peer in peers:
        name, _, python = peer.partition("=")
        if name != "mini":
            raise SystemExit(f"unknown peer {name!r}; allowed: mini=PYTHON")
        done = subprocess.run([python, str(MINI)], stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            figure, tab, value = line.partition("\t")
            if not tab:
                continue  # its greeting
            table.add("mini-swe-agent bubblewrap", figure, "ms", float(value))


async def measure(table: Table) -> None:
    """Take every figure of the local backend."""
    backend = LocalBackend()
    spec = spec_of_200_files()
    try:
        await (await backend.create(spec)).kill()  # the launcher is started once a process
        for section in (creating, in_a_live_one, many, fork_bombs):
            await section(table, backend, spec)
    finally:
        await backend.aclose()


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--scale", type=int, default=1, help="multiply the repeats")
    args = parser.parse_args()
    table = Table(args.scale)
    asyncio.run(measure(table))
    measure_peers(table, args.peer)
    table.write()


if __name__ == "__main__":
    main()
