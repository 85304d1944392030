"""A sandbox for code without an event loop: the same methods, each waiting for its result.

    with BlockingSandbox("local", SandboxSpec(layers=(layer,))) as sandbox:
        print(sandbox.exec("pytest -q").text())

Not here: the interface itself (`sandbox.py`); under asyncio use that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from katgym.sandbox.backends import backend
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.shared import sandbox_thread
from katgym.sandbox.spec import SandboxSpec

P = ParamSpec("P")
T = TypeVar("T")


def _wait_for(
    method: Callable[Concatenate[Sandbox, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingSandbox, P], T]:
    """Return a method that runs one of `Sandbox` on the sandbox thread and waits for it."""

    @functools.wraps(method)
    def wait(self: BlockingSandbox, /, *args: P.args, **options: P.kwargs) -> T:
        return self.thread.wait(method(self.sandbox, *args, **options))

    return wait


class BlockingSandbox:
    """One sandbox with a backend and an event loop of its own; threads may share it.

    `close` (or leaving the `with`) kills the sandbox, closes the backend and ends the thread.
    """

    def __init__(self, name: str, spec: SandboxSpec, **options: Any) -> None:
        """Start a sandbox of backend `name` with its `options`; errors are those of `create`."""
        self.thread = sandbox_thread()
        self._is_closed = False
        self._backend: SandboxBackend | None = None
        try:
            self._backend, self.sandbox = self.thread.wait(_start(name, spec, options))
        except BaseException:
            self.close()
            raise

    exec = _wait_for(Sandbox.exec)
    call = _wait_for(Sandbox.call)
    read = _wait_for(Sandbox.read)
    write = _wait_for(Sandbox.write)
    diff = _wait_for(Sandbox.diff)
    snapshot = _wait_for(Sandbox.snapshot)
    reset = _wait_for(Sandbox.reset)

    def close(self) -> None:
        """Kill the sandbox and release everything; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._backend is not None:
                self.thread.wait(self._backend.aclose())
        finally:
            self.thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _start(
    name: str, spec: SandboxSpec, options: Mapping[str, Any]
) -> tuple[SandboxBackend, Sandbox]:
    made = backend(name, **options)
    try:
        return made, await made.create(spec)
    except BaseException:
        await made.aclose()
        raise
