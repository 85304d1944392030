"""Runs a command and ends it, with everything it started, when the process that asked is gone.

    python process_guard.py [--streams] STOP_TIMEOUT_S COMMAND...

It reads standard input: the other end belongs to whoever asked, and closes when that one closes it
or dies in whatever way. Then the command is asked to end (TERM) and, after the time given, killed
with its whole process group and every process that it left behind. The exit status is the
command's; 128 + N where signal N ended it. With `--streams` the command reads this standard input
itself, and whoever asked is gone when this process has another parent. A file with the standard
library alone, run by its path.

It does not protect against processes that start a session of their own and are no longer its
descendants where the kernel has no child subreapers (anything but Linux).

Not here: starting a server and waiting for its health (`server.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2


def main(arguments: list[str]) -> int:
    """Run the command to its end, or until standard input closes."""
    has_streams = arguments[0] == "--streams"
    stop_timeout_s, *command = arguments[1:] if has_streams else arguments
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # raises KeyboardInterrupt
    _prctl(_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            command,
            stdin=None if has_streams else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as e:
        sys.stderr.write(f"cannot start {command[0]!r}: {e}\n")
        return 127
    try:
        if has_streams:  # held open here, the command's output would not end with the command
            os.closerange(0, 2)
        # Until the command has ended, or whoever asked for it is gone.
        while child.poll() is None:
            if not has_streams:
                readable, _, _ = select.select([sys.stdin], [], [], _TICK_S)
                if readable and not os.read(sys.stdin.fileno(), 1024):
                    break
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_TICK_S)
            # Another child of the asking process may hold the pipe open.
            if os.getppid() != parent:
                break
    except KeyboardInterrupt:
        sys.stderr.write("asked to stop\n")
    finally:
        _stop(child, float(stop_timeout_s))
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _stop(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End the command and all that it started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if child.poll() is None:
        child.terminate()  # its leader ends the others in the order it likes
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=timeout_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    _kill_descendants()


def _kill_descendants(limit_s: float = 10.0) -> None:
    """Kill what is left: orphans become children of this process, one generation at a time."""
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        children = [int(pid) for pid in task.read_text().split()] if task.exists() else []
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _die_with_parent() -> None:
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
