"""Expectations of a sandbox under test; what is not met raises `ConformanceError`.

    await expect.run(sandbox, "exit 3", exit_code=3)
    await expect.content(sandbox, "file", b"new")

Not here: checks made of them (`check.py`, `checks/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence

from katgym.sandbox.base import AGENT, ExecResult
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.sandbox import Sandbox

HANG_S = 120.0
"""Wall seconds after which what takes a moment is said to hang, however busy the machine is."""
_ENDS = frozenset({"ok", "exit_code", "signal"})


class ConformanceError(AssertionError):
    """A backend does not do what the interface says."""


def that(is_met: bool, text: str) -> None:
    """Raise unless it is so."""
    if not is_met:
        raise ConformanceError(text)


def equal(found: object, wanted: object, what: str) -> None:
    """Raise unless the two are equal."""
    if found != wanted:
        raise ConformanceError(f"{what}: got {_short(found)}, should be {_short(wanted)}")


def ok(result: ExecResult) -> bytes:
    """Raise unless a command worked; return its stdout."""
    that(result.ok, f"a command that should work did not: {_short(result)}")
    return result.stdout


async def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], work: Awaitable[object], what: str
) -> BaseException:
    """Raise unless awaiting `work` raises `kind`; return what it raised."""
    name = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
    try:
        found = await work
    except kind as e:
        return e
    except Exception as e:
        raise ConformanceError(f"{what} raised {e!r}, should raise {name}") from e
    raise ConformanceError(f"{what} returned {_short(found)}, should raise {name}")


async def run(
    sandbox: Sandbox,
    command: Sequence[str] | str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    limits: SandboxLimits | None = None,
    user: str = AGENT,
    reason: bytes | None = None,
    **fields: object,
) -> ExecResult:
    """Run a command and return its result, of which these fields have to be so.

    It has to work unless `ok`, `exit_code` or `signal` is among them; `ok=None` is any end.
    reason: has to be part of stderr, which then is not empty.
    """
    result = await sandbox.exec(command, cwd=cwd, env=env, stdin=stdin, limits=limits, user=user)
    if not fields.keys() & _ENDS:
        ok(result)
    for name, wanted in fields.items():
        if (name, wanted) != ("ok", None):
            what = f"{name} of {_short(command)}, cwd={cwd!r}, of {_short(result)}"
            equal(getattr(result, name), wanted, what)
    if reason is not None:
        is_told = bool(result.stderr) and reason in result.stderr
        that(is_told, f"no reason on stderr of {_short(command)}: {_short(result)}")
    return result


async def content(sandbox: Sandbox, path: str, wanted: bytes, what: str = "") -> None:
    """Raise unless a file holds this."""
    equal(await sandbox.read(path), wanted, what or f"read({path!r})")


@contextlib.asynccontextmanager
async def no_hang(what: str) -> AsyncIterator[None]:
    """Raise if what is done within has not ended after `HANG_S`."""
    try:
        async with asyncio.timeout(HANG_S):
            yield
    except TimeoutError:
        that(False, f"{what} has not ended after {HANG_S:.0f} s")


async def until(sandbox: Sandbox, condition: str) -> None:
    """Wait until a shell test holds inside; raise after `HANG_S`."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        if (await sandbox.exec(f"test {condition}")).ok:
            return
    raise ConformanceError(f"`test {condition}` did not become true within {HANG_S:.0f} s")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-180:]}"
