"""The local backend, some of whose sandboxes cannot be made, or break."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from katgym.sandbox import Enforcement, Sandbox, SandboxBackend, SandboxError, SandboxSpec
from katgym.sandbox.operations import Operation, PreloadedCall


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


class BreakingBackend(FaultyBackend):
    """Another backend, whose sandboxes break once a test run puts a text into a file."""

    def __init__(self, inner: SandboxBackend, text: bytes) -> None:
        super().__init__(inner, lambda n: False)
        self.text = text

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await super().create(spec)
        request = sandbox.link.request

        async def breaking(operation: Operation[Any]) -> Any:
            if isinstance(operation, PreloadedCall):
                plan = json.loads(operation.argument[operation.argument.index(b'{"files"') :])
                if any(self.text in base64.b64decode(content) for _, content, _ in plan["put"]):
                    raise SandboxError("the supervisor is gone")
            return await request(operation)

        sandbox.link.request = breaking  # type: ignore[assignment]
        return sandbox
