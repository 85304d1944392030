"""Stages of a measurement on a GPU, each a process of its own, within a budget of seconds.

    sys.exit(play(STAGES, TABLES, __doc__))

A stage that fails, crashes, hangs or has no time left is named, and the others go on; the exit code
is then 1. Rows are written as they come, so that an end midway loses nothing: to `--out`, else to
the folder that $OUT names, else beside the script. Not here: what is measured (`gpu.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from timing import Rows, device_name


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a stage is told, and where it puts what it finds."""

    is_small: bool
    """Tiny inputs, on the CPU where there is no GPU."""
    out: Path
    deadline: float
    """On `time.monotonic`."""
    device: torch.device = field(
        default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )

    @property
    def left_s(self) -> float:
        """Seconds until the stage is ended."""
        return self.deadline - time.monotonic()

    def add(self, table: str, row: Mapping[str, object]) -> None:
        """Write a row."""
        print(f"ROW {json.dumps([table, dict(row)])}", flush=True)

    def fail(self, text: str) -> None:
        """Say what is wrong, or could not be looked at."""
        print(f"FAIL {text}", flush=True)

    def leave_out(self, text: str) -> None:
        """Say what is not there to be measured, which is no failure."""
        print(f"NOT THERE {text}", flush=True)

    @contextlib.contextmanager
    def passing_over(self, name: str) -> Iterator[None]:
        """Report what goes wrong inside, and go on behind it."""
        try:
            yield
        except Exception as e:  # of compilers, drivers and libraries: no common base
            self.fail(f"{name}: {type(e).__name__}: {' '.join(str(e).split())[:300]}")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Part of a measurement."""

    name: str
    run: Callable[[Bench], None]
    is_timed: bool = True
    """Whether it has the GPU to itself; others run side by side where they stand together."""
    limit_s: float = 120
    needs_s: float = 15
    """It is not begun with less time than that."""


class _Parent:
    """Runs stages, and writes down what they say."""

    def __init__(
        self, options: argparse.Namespace, out: Path, tables: Mapping[str, Sequence[str]]
    ) -> None:
        self._deadline = time.monotonic() + options.budget_s
        self._is_small, self._slack = options.small, options.slack
        self._out = out
        self._files = contextlib.ExitStack()
        self._lock = threading.Lock()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        shared = {"device": device_name(torch.device(device))}
        self._rows = {
            name: Rows(self._open(name), columns, shared) for name, columns in tables.items()
        }
        self.failures: list[str] = []
        self.left_out: list[str] = []

    def _open(self, table: str) -> object:
        place = self._out / f"{table}_gpu.csv"
        return self._files.enter_context(place.open("w", encoding="utf-8", newline=""))

    def play(self, stage: Stage) -> None:
        """Run a stage in a process, until its limit."""
        longest_s = stage.limit_s * self._slack
        limit_s = min(longest_s, self._deadline - time.monotonic())
        if limit_s < min(stage.needs_s, longest_s):
            self._take(stage, "FAIL no time was left")
            return
        command = [sys.executable, sys.argv[0], "--stage", stage.name, "--out", str(self._out)]
        command += ["--budget-s", str(limit_s), *["--small"] * self._is_small]
        # A group of its own: what it starts to compile ends with it.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        ended = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        ended.start()
        last = ""
        assert process.stdout is not None
        for line in process.stdout:
            self._take(stage, line.rstrip())
            last = line.strip() or last
        code = process.wait()
        ended.cancel()
        if code:
            why = f"was ended after {limit_s:.0f} s" if code == -signal.SIGKILL else f"exit {code}"
            self._take(stage, f"FAIL {why}; it said last: {last[:300]}")

    def _take(self, stage: Stage, line: str) -> None:
        with self._lock:
            if line.startswith("ROW "):
                table, row = json.loads(line[4:])
                self._rows[table].write(row)
                line = " ".join(f"{key}={value}" for key, value in row.items())
            if line.startswith("FAIL "):
                self.failures.append(f"{stage.name}: {line[5:]}")
            if line.startswith("NOT THERE "):
                self.left_out.append(line[10:])
            print(f"[{stage.name}] {line}", flush=True)

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def play(
    stages: Sequence[Stage],
    tables: Mapping[str, Sequence[str]],
    doc: str | None,
    *,
    left_out: Sequence[str] = (),
) -> int:
    """Run stages in their order, or the one that is asked for; return the exit code.

    tables: columns by name; `{name}_gpu.csv` is written. left_out: what is not there to be played.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--budget-s", type=float, default=480, help="seconds in all (480)")
    parser.add_argument("--slack", type=float, default=1, help="times a stage's own limit (1)")
    parser.add_argument("--out", type=Path, help="a folder")
    parser.add_argument("--small", action="store_true", help="tiny inputs, on a CPU if need be")
    parser.add_argument("--stage", choices=[s.name for s in stages], help="this one, in here")
    options = parser.parse_args()
    is_cuda = torch.cuda.is_available()
    if not is_cuda and not options.small:
        print("no CUDA device is there; --small plays it on the CPU", file=sys.stderr)
        return 2
    if not is_cuda:
        os.environ["TRITON_INTERPRET"] = "1"  # before a stage imports triton
    place = options.out or os.environ.get("OUT") or Path(sys.argv[0]).parent
    if options.small and options.out is None:  # rows of a play never replace measured ones
        place = tempfile.mkdtemp(prefix="bench-gpu-")
    out = Path(place).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.stage:
        deadline = time.monotonic() + options.budget_s
        (stage,) = (s for s in stages if s.name == options.stage)
        stage.run(Bench(is_small=options.small, out=out, deadline=deadline))
        return 0
    started = time.monotonic()
    parent = _Parent(options, out, tables)
    print(f"rows are written to {out}", flush=True)
    beside: list[Stage] = []
    for stage in [*stages, None]:
        if stage is not None and not stage.is_timed:
            beside.append(stage)
            continue
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(parent.play, beside))
        beside = []
        if stage is not None:
            parent.play(stage)
    parent.close()
    for text in [*left_out, *parent.left_out]:
        print(f"NOT THERE {text}")
    for failure in parent.failures:
        print(f"FAILED {failure}")
    print(f"{time.monotonic() - started:.0f} s in all, {len(parent.failures)} failures")
    return 1 if parent.failures else 0
