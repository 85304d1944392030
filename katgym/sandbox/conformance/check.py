"""A conformance check, and the fixture it works with.

Not here: the checks (one module per subject), running them (`running.py`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

from katgym.sandbox.base import Enforcement, ExecResult
from katgym.sandbox.layer import FileEntry, Layer, layer_store
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.venvs import ensure_venv

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


class ConformanceError(AssertionError):
    """A backend does not do what the interface says."""


def expect(is_met: bool, text: str) -> None:
    """Raise `ConformanceError` unless it is so."""
    if not is_met:
        raise ConformanceError(text)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Raise `ConformanceError` unless the two are equal."""
    if found != wanted:
        raise ConformanceError(f"{what}: got {_short(found)}, should be {_short(wanted)}")


def expect_ok(result: ExecResult) -> bytes:
    """Raise `ConformanceError` unless a command worked; return its stdout."""
    expect(result.ok, f"a command that should work did not: {_short(result)}")
    return result.stdout


async def expect_raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], work: Awaitable[object], what: str
) -> BaseException:
    """Raise `ConformanceError` unless awaiting `work` raises `kind`; return what it raised."""
    name = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
    try:
        found = await work
    except kind as e:
        return e
    except Exception as e:
        raise ConformanceError(f"{what} raised {e!r}, should raise {name}") from e
    raise ConformanceError(f"{what} returned {_short(found)}, should raise {name}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-180:]}"


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
        files: Mapping[str, bytes | FileEntry] | None = None,
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
    async def sandbox(
        self, files: Mapping[str, bytes | FileEntry] | None = None, **changes: Any
    ) -> AsyncIterator[Sandbox]:
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


def check(
    *,
    requires: Iterable[str] = (),
    needs_limits: Iterable[str] = (),
    harms_unisolated: bool = False,
) -> Callable[[CheckFunction], ConformanceCheck]:
    """Make a check of an async function, named after its module and itself."""

    def make(run: CheckFunction) -> ConformanceCheck:
        subject = run.__module__.rpartition(".")[2].removesuffix("_checks")
        return ConformanceCheck(
            name=f"{subject}.{run.__name__}",
            description=" ".join((inspect.getdoc(run) or "").split()),
            run=run,
            requires=frozenset(requires),
            limits=frozenset(needs_limits),
            harms_unisolated=harms_unisolated,
        )

    return make


def sandbox_check(
    files: Mapping[str, bytes | FileEntry] | None = None,
    *,
    requires: Iterable[str] = (),
    needs_limits: Iterable[str] = (),
    harms_unisolated: bool = False,
    **changes: Any,
) -> Callable[[Callable[[Sandbox], Awaitable[None]]], ConformanceCheck]:
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


def checks_of(module: ModuleType) -> tuple[ConformanceCheck, ...]:
    """Return a module's checks, in the order they are written."""
    return tuple(found for found in vars(module).values() if isinstance(found, ConformanceCheck))


async def until(sandbox: Sandbox, condition: str) -> None:
    """Wait until a shell test holds inside; `ConformanceError` after 10 s."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        if (await sandbox.exec(f"test {condition}")).ok:
            return
    raise ConformanceError(f"`test {condition}` did not become true within 10 s")
