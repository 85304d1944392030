"""A conformance check, and the fixture it works with.

Not here: what a check expects (`expect.py`), the checks (one module per subject), running them
(`running.py`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any, TypeVar

from katgym.sandbox.base import Enforcement
from katgym.sandbox.conformance import expect
from katgym.sandbox.layer import FileEntry, Layer, layer_store
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.venvs import ensure_venv

T = TypeVar("T")
Files = Mapping[str, bytes | FileEntry]
SMALL = SandboxLimits(
    wall_s=30.0,
    memory_bytes=256 * MEBIBYTE,
    max_processes=64,
    disk_bytes=32 * MEBIBYTE,
    max_files=2000,
    max_open_files=256,
    file_bytes=24 * MEBIBYTE,
)
"""What checks run under unless they are about a limit."""


class Fixture:
    """What a check works with: a backend, the spec to start from, and what is enforced."""

    def __init__(
        self, backend: SandboxBackend, enforcement: Enforcement, base: SandboxSpec
    ) -> None:
        self.backend = backend
        self.enforcement = enforcement
        self.base = base

    @property
    def python(self) -> str:
        """Interpreter for specs that need one: the base spec's, else of an empty cached venv."""
        return self.base.python or ensure_venv(())

    def spec(
        self,
        files: Files | None = None,
        *,
        limits: Mapping[str, float | None] | None = None,
        **changes: Any,
    ) -> SandboxSpec:
        """Return the base spec with a layer of `files` on top, and small limits.

        limits: changes to `SMALL`; what the backend does not enforce is left unlimited.
        """
        bound = replace(SMALL, **dict(limits or {}))  # type: ignore[arg-type]  # checked by it
        unenforced = {
            item.name: None
            for item in fields(SandboxLimits)
            if item.name not in self.enforcement.limits and item.name != "output_bytes"
        }
        layers: tuple[Layer, ...] = self.base.layers
        if files:
            layers = (*layers, layer_store().add_files(files))
        bound = replace(bound, **unenforced)  # type: ignore[arg-type]
        return replace(self.base, **{"layers": layers, "limits": bound, **changes})

    @contextlib.asynccontextmanager
    async def sandbox(self, files: Files | None = None, **changes: Any) -> AsyncIterator[Sandbox]:
        """Yield a sandbox of `spec(files, **changes)`, and kill it."""
        sandbox = await self.backend.create(self.spec(files, **changes))
        try:
            yield sandbox
        finally:
            await sandbox.kill()


CheckFunction = Callable[[Fixture], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCheck:
    """One thing a backend has to do.

    Example:
        ConformanceCheck(name="limits.wall", description="The wall limit ends a command ...",
                         run=wall, limits=frozenset({"wall_s"}))
    """

    name: str
    """Subject, full stop, what it is about."""
    description: str
    run: CheckFunction
    requires: frozenset[str] = frozenset()
    """Of `Enforcement.capabilities`; without one of them the check does not apply."""
    limits: frozenset[str] = frozenset()
    """Of `Enforcement.limits`; without one of them the check does not apply."""
    harms_unisolated: bool = False
    """Whether it would end the host's own processes where the backend isolates nothing."""

    def __str__(self) -> str:
        return self.name

    @property
    def subject(self) -> str:
        """The part of the name that several checks share."""
        return self.name.partition(".")[0]

    def missing(self, enforcement: Enforcement) -> str | None:
        """Return why the check does not apply to such a backend, or None."""
        if self.harms_unisolated and not enforcement.is_safe:
            return "the backend isolates nothing, and the check would harm the host"
        capabilities = sorted(self.requires - enforcement.capabilities)
        if capabilities:
            return f"the backend has no capability {', '.join(map(repr, capabilities))}"
        limits = sorted(self.limits - set(enforcement.limits))
        return f"the backend does not enforce {', '.join(limits)}" if limits else None


Decorator = Callable[[T], ConformanceCheck]


def check(
    *,
    requires: Iterable[str] = (),
    needs_limits: Iterable[str] = (),
    harms_unisolated: bool = False,
) -> Decorator[CheckFunction]:
    """Make a check of an async function and its docstring; `checks_of` gives it its name."""

    def make(run: CheckFunction) -> ConformanceCheck:
        return ConformanceCheck(
            name="",
            description=" ".join((inspect.getdoc(run) or "").split()),
            run=run,
            requires=frozenset(requires),
            limits=frozenset(needs_limits),
            harms_unisolated=harms_unisolated,
        )

    return make


def sandbox_check(
    files: Files | None = None,
    *,
    requires: Iterable[str] = (),
    needs_limits: Iterable[str] = (),
    harms_unisolated: bool = False,
    **changes: Any,
) -> Decorator[Callable[[Sandbox], Awaitable[None]]]:
    """Make a check of an async function that is given one sandbox: `Fixture.sandbox(...)`."""

    def make(function: Callable[[Sandbox], Awaitable[None]]) -> ConformanceCheck:
        @functools.wraps(function)
        async def run(fixture: Fixture) -> None:
            async with fixture.sandbox(files, **changes) as sandbox:
                await function(sandbox)

        describe = check(
            requires=requires, needs_limits=needs_limits, harms_unisolated=harms_unisolated
        )
        return describe(run)

    return make


Row = tuple[Sequence[str] | str, Mapping[str, Any]]
"""A command, and how it is run and what comes of it: arguments of `expect.run`."""


def row(command: Sequence[str] | str, **words: Any) -> Row:
    """Return a row of `commands`."""
    return command, words


def commands(description: str, *rows: Row, files: Files | None = None) -> ConformanceCheck:
    """Make a check of commands, run one after another in one sandbox."""

    async def run(sandbox: Sandbox) -> None:
        for command, words in rows:
            await expect.run(sandbox, command, **words)

    run.__doc__ = description
    return sandbox_check(files)(run)


def checks_of(module: ModuleType) -> tuple[ConformanceCheck, ...]:
    """Return a module's checks in the order they are written, each named after both."""
    subject = module.__name__.rpartition(".")[2].removesuffix("_checks")
    return tuple(
        replace(found, name=f"{subject}.{name}")
        for name, found in vars(module).items()
        if isinstance(found, ConformanceCheck)
    )
