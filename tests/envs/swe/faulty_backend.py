"""The local backend, some of whose sandboxes cannot be made."""

from __future__ import annotations

from collections.abc import Callable

from katgym.sandbox import Enforcement, Sandbox, SandboxBackend, SandboxError, SandboxSpec


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
