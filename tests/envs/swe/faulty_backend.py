"""The local backend, some of whose sandboxes cannot be made, break, or are late."""

from __future__ import annotations

import abc
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from katgym.sandbox import (
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from katgym.sandbox.operations import Operation, PreloadedCall

Request = Callable[[PreloadedCall], Awaitable[tuple[ExecResult, bytes]]]


class FaultyBackend(SandboxBackend):
    """Another backend, which counts its sandboxes, from 1, and makes none that `is_faulty`."""

    name = "faulty"

    def __init__(self, inner: SandboxBackend, is_faulty: Callable[[int], bool]) -> None:
        self.inner = inner
        self.is_faulty = is_faulty
        self.num_created = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.num_created += 1
        if self.is_faulty(self.num_created):
            raise SandboxError("no sandbox today")
        return await self.inner.create(spec)

    async def enforcement(self) -> Enforcement:
        return await self.inner.enforcement()

    async def gc(self) -> int:
        return 0

    async def aclose(self) -> None:
        await self.inner.aclose()


class InterceptingBackend(FaultyBackend):
    """Another backend, whose test runs go through `run_tests`."""

    def __init__(self, inner: SandboxBackend) -> None:
        super().__init__(inner, lambda n: False)

    @abc.abstractmethod
    async def run_tests(self, call: PreloadedCall, request: Request) -> tuple[ExecResult, bytes]:
        """Return what came of a test run; `request` makes it."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await super().create(spec)
        request = sandbox.link.request

        async def intercept(operation: Operation[Any]) -> Any:
            if isinstance(operation, PreloadedCall):
                return await self.run_tests(operation, request)
            return await request(operation)

        sandbox.link.request = intercept  # type: ignore[assignment]
        return sandbox


class BreakingBackend(InterceptingBackend):
    """Another backend, whose sandboxes break once a test run puts a text into a file."""

    def __init__(self, inner: SandboxBackend, text: bytes) -> None:
        super().__init__(inner)
        self.text = text

    async def run_tests(self, call: PreloadedCall, request: Request) -> tuple[ExecResult, bytes]:
        if self.text in b"".join(files_put(call)):
            raise SandboxError("the supervisor is gone")
        return await request(call)


class BusyBackend(InterceptingBackend):
    """Another backend, whose test runs end by the wall clock where `is_late` says so.

    is_late: is given the contents that a run puts into files. A run that is late has told nothing.
    """

    def __init__(self, inner: SandboxBackend, is_late: Callable[[list[bytes]], bool]) -> None:
        super().__init__(inner)
        self.is_late = is_late

    async def run_tests(self, call: PreloadedCall, request: Request) -> tuple[ExecResult, bytes]:
        done, reported = await request(call)
        if not self.is_late(files_put(call)):
            return done, reported
        late = replace(done, exit_code=None, signal=9, is_timed_out=True, limit_hit="wall_s")
        return late, reported.splitlines(keepends=True)[0]


def files_put(call: PreloadedCall) -> list[bytes]:
    """Return the contents that a test run puts into files."""
    plan = json.loads(call.argument[call.argument.index(b'{"files"') :])
    return [base64.b64decode(content) for _, content, _ in plan["put"]]
