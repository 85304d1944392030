"""Sandboxes and what makes them: the one class that callers use, and the interface of backends.

A plugin registers a backend with hook `katgym_register_sandboxes`; `conformance` is the suite it
should pass. Not here: the backends (`local/`, `docker_engine/`, `remote/`), what carries out a
sandbox's operations (`operations.Link`).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Self

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, MAX_READ_BYTES, Enforcement, ExecResult
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.operations import (
    Command,
    Diff,
    Link,
    PreloadedCall,
    Read,
    Reset,
    Snapshot,
    Write,
)
from katgym.sandbox.spec import SandboxSpec
from katgym.system.sync import run_sync


class Sandbox:
    """One live sandbox; an async context manager that kills it.

    Methods raise `SandboxError` when the sandbox is gone or broken. Commands may run at the same
    time; `diff`, `snapshot`, `reset` and `fork` first end every command that is running.
    """

    def __init__(self, link: Link, backend: SandboxBackend) -> None:
        self.id = link.id
        self.spec = link.spec
        self.backend = backend
        self.link = link

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        user: str = AGENT,
    ) -> ExecResult:
        """Run a command to its end, and end every process it left behind.

        command: an argv, or a text for `/bin/bash -c` (no login shell).
        cwd: absolute, or relative to the workdir; None is the workdir.
        env: added to the spec's; limits: tightened by the spec's.
        user: "agent", or what capability "users" allows: "root" (of the sandbox, without
            capabilities) or a numeric uid.

        A command that cannot be started is a result like a shell's: exit code 127 (not found), 126
        (not executable, not a cwd, argument list too long) and the reason on stderr.
        """
        argv = Command.to_argv(command)
        return await self.link.request(
            Command(argv=argv, cwd=cwd, env=env or {}, stdin=stdin, limits=limits, user=user)
        )

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a regular file's bytes; the path is absolute or relative to the workdir.

        It lies in the workdir or /tmp, and no link on the way leads out. `SandboxFileError` if it
        is missing, no regular file, larger than `max_bytes`, or leads out.
        """
        return await self.link.request(Read(path=path, max_bytes=max_bytes))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace or create a regular file, making its directories; owned by the agent.

        The same paths as for `read`. The content is exchanged at once (temporary file and rename),
        so a reader never sees half of it. A link at the path itself is replaced, not followed.
        """
        await self.link.request(Write(path=path, data=data, mode=mode))

    async def diff(
        self, *, max_file_bytes: int = MAX_READ_BYTES, max_changes: int = 10_000
    ) -> WorkspaceDiff:
        """Return how the workspace differs from the spec's layers."""
        return await self.link.request(Diff(max_file_bytes=max_file_bytes, max_changes=max_changes))

    async def snapshot(self) -> str:
        """Freeze the workspace; return an id for `reset` and `fork`, good while this backend is."""
        return await self.link.request(Snapshot())

    async def reset(self, to: str | None = None) -> None:
        """Put the workspace back to a snapshot (None: to the spec's layers) and empty /tmp."""
        await self.link.request(Reset(to=to))

    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """Return `num` new sandboxes whose workspaces start as this one's is (or as snapshot `at`).

        Files only, no processes. A fork outlives this sandbox.
        """
        if num < 1:
            raise UsageError(f"fork makes at least one sandbox, got num={num!r}")
        return [Sandbox(link, self.backend) for link in await self.link.fork(num, at)]

    async def kill(self) -> None:
        """End everything in it and release what it holds; may be called twice, and never waits for
        processes to agree."""
        await self.link.kill()

    async def call(
        self,
        function: str,
        argument: bytes,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> tuple[ExecResult, bytes]:
        """Run `module:function` of a preloaded module in a child forked from the warm interpreter.

        `function(argument: bytes, report: Callable[[bytes], None]) -> int | None` (the exit code);
        the bytes it reports, joined and capped at `limits.output_bytes`, come back beside the
        result. They are what a process with untrusted code in it said: evidence, not truth. The
        child is confined like a command. Needs capability "call" and a spec with `preload`; raises
        `UsageError` without.
        """
        if not self.spec.preload:
            raise UsageError("Sandbox.call needs a spec with `preload`")
        return await self.link.request(
            PreloadedCall(
                function=function, argument=argument, cwd=cwd, env=env or {}, limits=limits
            )
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    def __deepcopy__(self, memo: dict[int, Any]) -> Sandbox:
        """Return a fork, which whoever has the copy has to kill."""
        (copy,) = run_sync(self.fork())
        memo[id(self)] = copy
        return copy


class SandboxBackend(abc.ABC):
    """Makes sandboxes of one kind; belongs to one event loop at a time, safe to share in it."""

    name: str

    @abc.abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a live sandbox.

        `UsageError` for a spec this backend cannot honour, `SandboxUnavailableError` if it cannot
        work here, `SandboxError` if making this one failed (nothing is left behind then).
        """

    @abc.abstractmethod
    async def enforcement(self) -> Enforcement:
        """Probe this machine and return what is enforced on it; cached."""

    @abc.abstractmethod
    async def gc(self) -> int:
        """End and remove what dead katgym processes left behind; return how many sandboxes."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Kill every sandbox of this backend object and release what it holds."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it holds processes and connections, which copies of sandboxes share

    def provenance(self) -> Mapping[str, Any]:
        """Return what a result should record: backend, level, whether `unsafe` was asked for."""
        return {"backend": self.name}
