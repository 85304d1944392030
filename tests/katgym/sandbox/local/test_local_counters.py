"""What one local sandbox moves in the kernel a later one does not read, or the table says so."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_state import KERNEL_STATES, REFUSED, draw_port, move_state, read_state
from local_play import SMALL, in_sandbox, shown, with_backend

from katgym.sandbox import Sandbox, SandboxSpec
from katgym.sandbox.local.backend import LocalBackend

GRADING = Path(__file__).parents[4] / "docs/concepts/grading.md"
_COLD = """
import os
def from_disk():
    text = open("/proc/self/io").read().split()
    return int(text[text.index("read_bytes:") + 1])
before = from_disk()
open("FILE", "rb").read()
print(from_disk() - before)
"""
_CACHE_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/usr/bin/env", os.O_RDONLY)
try: print(os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT))
except OSError as e: print(os.strerror(e.errno))
for call in (27 if os.uname().machine == "x86_64" else 232, 451):  # mincore, cachestat
    print(libc.syscall(call, 0, 0, 0, 0), os.strerror(ctypes.get_errno()))
"""


async def _run_in_new(backend: LocalBackend, argv: list[str]) -> str:
    async with await backend.create(SandboxSpec(limits=SMALL)) as sandbox:
        return (await sandbox.exec(argv)).stdout.decode()


def test_what_was_moved_before_is_read_where_the_table_says_open_alone(
    subtests: pytest.Subtests,
) -> None:
    async def play(backend: LocalBackend) -> None:
        for _, grouped in itertools.groupby(KERNEL_STATES, key=lambda state: state.move):
            moved_together = list(grouped)
            before = [await read_state(backend, state) for state in moved_together]
            await move_state(backend, moved_together[0])
            for state, was in zip(moved_together, before, strict=True):
                with subtests.test(state=state.name):
                    found = await read_state(backend, state)
                    if not state.is_open:
                        assert found == was
                    elif REFUSED in (was, found):
                        pytest.skip(f"this kernel has no {state.name}")
                    else:
                        assert (int(found) - int(was)) % 2**32 >= state.by

    with_backend(play)


def test_the_load_average_is_the_hosts_and_open() -> None:
    look = "python3 -c 'import os; print(os.getloadavg()[0])'"
    before = os.getloadavg()[0]
    told = float(in_sandbox(lambda sandbox: shown(sandbox, look)))
    assert told in (before, os.getloadavg()[0])


def test_ports_are_drawn_from_a_range_of_each_sandboxs_own() -> None:
    async def draw(backend: LocalBackend) -> list[tuple[int, int, int]]:
        return [await draw_port(backend, num) for num in (1, 300, 1)]

    drawn = with_backend(draw)
    assert len({high - low for low, high, _ in drawn}) > 1
    assert all(low <= port <= high and high - low > 15_000 for low, high, port in drawn)


def test_what_a_sandbox_read_leaves_memory_with_it() -> None:
    path = "/usr/share/common-licenses/GPL-3"
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def read(backend: LocalBackend) -> list[int]:
        if not (await backend.enforcement()).level.endswith("+cgroup"):
            pytest.skip("without a control group it stays")
        return [
            int((await _run_in_new(backend, ["python3", "-c", _COLD.replace("FILE", path)])) or 0)
            for _ in range(3)
        ]

    first, second, third = with_backend(read)
    if not first:
        pytest.skip(f"{path} is never anywhere but in memory here")
    assert first == second == third


def test_a_sandbox_that_is_left_to_the_interpreters_exit_leaves_nothing() -> None:
    code = (
        "import asyncio, os; from katgym.sandbox import Sandbox, SandboxSpec, shared_backend\n"
        "fd = os.open('/usr/share/common-licenses/GPL-2', 0)\n"
        "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)\n"
        "async def main():\n"
        "    sandbox = await shared_backend('local').create(SandboxSpec())\n"
        "    assert (await sandbox.exec('cat /usr/share/common-licenses/GPL-2')).ok\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_calls_that_tell_of_the_page_cache_are_refused_and_programs_find_what_they_need() -> None:
    async def play(sandbox: Sandbox) -> None:
        told = await shown(sandbox, f"python3 - <<'END'\n{_CACHE_CALLS}\nEND")
        refused = ["Operation not supported", *["-1 Function not implemented"] * 2]
        assert told.splitlines() == refused
        found = await sandbox.exec(
            "set -e; free | grep -q Mem; uptime | grep -q 'load average'; ps aux | grep -q bash;"
            " python3 -c 'import multiprocessing, os; assert os.cpu_count();"
            " assert multiprocessing.Pool(2).map(abs, [-1]) == [1]';"
            " grep -c processor /proc/cpuinfo"
        )
        assert found.exit_code == 0, found.text()
        assert int(found.stdout) == os.cpu_count()

    in_sandbox(play)


def test_the_table_has_a_row_for_every_state_and_says_what_is_open() -> None:
    text = GRADING.read_text(encoding="utf-8")
    rows = text.partition("<!-- kernel state: start -->")[2].partition("<!-- kernel state: end")[0]
    tests = {line.split("|")[-2].strip(): "**open**" in line for line in rows.splitlines()[2:]}
    for state in KERNEL_STATES:
        name = "proc" if state.name.startswith("proc ") else state.name
        assert tests[name] == state.is_open, name
