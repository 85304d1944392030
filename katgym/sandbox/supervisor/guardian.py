"""The process between supervisor and command: starts it, waits, and leaves nothing of it running.

Runs inside sandboxes, Python >= 3.8. Not here: who tells it to stop, and the output
(`program.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH118

from __future__ import annotations

import errno
import os
import resource
import struct
import sys
from signal import SIGKILL

from katgym.sandbox.supervisor import processes, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs milliseconds where every sandbox pays them
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

STATUS = struct.Struct("!idQB")
"""Report of a guardian: wait status, CPU seconds, peak bytes, whether nothing is left."""
STATUS_FD = 3
CALL_FD = 4
CANNOT_RUN = 126
NOT_FOUND = 127


class Confinement:
    """What a backend does to a process on its way from supervisor to command.

    Each method runs in the process it is about and raises `OSError` where the system refuses; such
    a command is not run. A backend overrides what it does better.
    """

    is_nested = False
    """Whether a guardian's death takes everything below it (it is PID 1 of a namespace)."""
    owner: tuple[int, int] | None = None
    """Owner of what is written for the agent; None leaves the supervisor's own uid and gid."""

    def fork_guardian(self) -> int:
        """Fork as `os.fork` does, perhaps into new namespaces."""
        return os.fork()

    def enter_guardian(self) -> None:
        """Run in the guardian, before the command is forked."""
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, SIGKILL)

    def enter_command(self, user: str, limits: Mapping[str, Any]) -> None:
        """Run in the command, resource limits set, before the working directory is entered.

        No descriptor but the command's own is open any more.
        """
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)

    def oom_kills(self) -> int | None:
        """Return how often the kernel killed for memory in this sandbox; None if unknown here."""
        return None


class GuardedCommand:
    """What a guardian runs; `body` replaces the program by a function (see `call`)."""

    def __init__(
        self,
        request: Mapping[str, Any],
        workdir: str,
        body: Callable[[int], int] | None = None,
    ) -> None:
        self.argv = [encode(part) for part in request.get("argv", ())]
        self.env = {encode(k): encode(v) for k, v in request.get("env", {}).items()}
        self.cwd = os.path.join(encode(workdir), encode(request.get("cwd") or ""))
        self.limits: Mapping[str, Any] = request.get("limits", {})
        self.user = str(request.get("user", "agent"))
        self.body = body


def encode(text: str) -> bytes:
    """Return the bytes of a command line, path or variable, whatever the locale."""
    return text.encode("utf-8", "surrogateescape")


def run_guardian(
    confinement: Confinement, command: GuardedCommand, fds: tuple[int, int, int, int, int]
) -> NoReturn:
    """Be the guardian; never returns.

    fds: what becomes stdin, stdout, stderr, `STATUS_FD` and, if not -1, `CALL_FD`.
    """
    try:
        for target, fd in enumerate(fds):
            if fd >= 0:
                os.dup2(fd, target, target < 3)
        # The supervisor's own ends, and those of other commands, must not stay open here.
        syscalls.close_from(CALL_FD if fds[CALL_FD] < 0 else CALL_FD + 1)
        confinement.enter_guardian()
        pid = os.fork()
        if pid == 0:
            _run_command(confinement, command)
        reaped = status = 0
        while reaped != pid:
            reaped, status = os.waitpid(-1, 0)
        is_clean = False
        try:  # reap what has ended; it is clean if nothing is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            is_clean = True
        if not is_clean and not confinement.is_nested:  # nested: the exit below takes them all
            is_clean = processes.end_descendants(processes.Usage())
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        os.write(STATUS_FD, STATUS.pack(status, cpu_s, used.ru_maxrss * 1024, is_clean))
        os._exit(0)
    except BaseException as error:  # the process must never go on as a second supervisor
        os.write(2, encode(f"guardian: {error!r}\n"))
        os._exit(70)


def _run_command(confinement: Confinement, command: GuardedCommand) -> NoReturn:
    code = CANNOT_RUN
    try:
        os.setsid()
        os.umask(0o022)
        syscalls.close_from(STATUS_FD if command.body is None else CALL_FD + 1)
        if command.body is not None:
            os.close(STATUS_FD)
        set_rlimits(command.limits.get("rlimits", {}))
        confinement.enter_command(command.user, command.limits)
        os.chdir(command.cwd)
        if command.body is not None:
            os.environb.clear()
            os.environb.update(command.env)
            code = command.body(CALL_FD)
        else:
            _execute(command.argv, command.env)
    except OSError as error:
        code = NOT_FOUND if error.errno == errno.ENOENT and error.filename is None else CANNOT_RUN
        name = error.filename if error.filename is not None else b"".join(command.argv[:1])
        shown = name if isinstance(name, bytes) else encode(str(name))
        os.write(2, shown[:200] + b": " + encode(error.strerror or str(error)) + b"\n")
    except BaseException as error:
        os.write(2, encode(f"{error!r}\n"))
    os._exit(code)


def set_rlimits(rlimits: Mapping[str, int]) -> None:
    """Set soft and hard limits by name ("NOFILE"), never above the hard limit there is."""
    for name, value in rlimits.items():
        which = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(which)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (least, least))


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Become a program, looked up as a shell would; returns by `OSError` only."""
    problem = OSError(errno.ENOENT, "command not found")
    folders = env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":")
    if b"/" in argv[0]:
        folders = [b""]
        problem = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in folders:
        path = os.path.join(folder, argv[0])
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script without its first line
                os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], env)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            problem = OSError(error.errno, error.strerror)
            if error.errno != errno.EACCES:
                break
    raise problem


def fix_session() -> None:
    """Set this process's audit session, where the kernel has such, for it and all below it.

    An unset one anybody may set, and the numbers of sessions count for the whole machine.
    """
    try:
        fd = os.open("/proc/self/loginuid", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # the kernel has none
        return
    try:
        if os.pread(fd, 16, 0) == b"4294967295":
            os.write(fd, b"%d" % os.getuid())
    except PermissionError:  # then commands may not either
        return
    finally:
        os.close(fd)


def call_body(name: str, argument: bytes) -> Callable[[int], int]:
    """Return what calls `module:function` of a module that is loaded here."""

    def body(report_fd: int) -> int:
        import importlib
        import traceback

        def report(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(report_fd, view) :]

        try:
            module, _, function = name.partition(":")
            code = getattr(importlib.import_module(module), function)(argument, report)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1 if error.code else 0
        except BaseException:
            traceback.print_exc()
            code = 1
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        return int(code or 0) & 0xFF

    return body
