"""One backend of each name for the whole process, usable from any thread and event loop.

Envs take theirs from here: a synchronous `env.step` runs in a new event loop each time, and their
sandbox has to live on between two. The backends live on an event loop of their own, in a thread;
each call costs two thread switches more (about 0.1 ms). Not here: backends made by hand
(`backends.py`), the interface (`sandbox.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - it registers its end before ours, below
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from katgym.sandbox.backends import backend
from katgym.sandbox.base import Enforcement, SandboxError
from katgym.sandbox.operations import Link, Operation
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec
from katgym.system.concurrency import LoopThread
from katgym.system.processes import on_fork

T = TypeVar("T")


def sandbox_thread() -> LoopThread:
    """Return a thread on which backends live; `SandboxError` says that it was stopped."""
    return LoopThread(
        "the sandboxes", closed=lambda: SandboxError("the sandboxes of this process were closed")
    )


class ThreadLink(Link):
    """The link to a sandbox that lives on the sandbox thread."""

    def __init__(self, thread: LoopThread, inner: Link) -> None:
        self.id = inner.id
        self.spec = inner.spec
        self._thread = thread
        self._inner = inner

    async def request(self, operation: Operation[T]) -> T:
        return await self._thread.run(self._inner.request(operation))

    async def fork(self, num: int, at: str | None) -> Sequence[Link]:
        made = await self._thread.run(self._inner.fork(num, at))
        return [ThreadLink(self._thread, inner) for inner in made]

    async def kill(self) -> None:
        await self._thread.run(self._inner.kill())


class SharedBackend(SandboxBackend):
    """A backend that lives on the sandbox thread; the methods are those of `SandboxBackend`."""

    def __init__(self, thread: LoopThread, inner: SandboxBackend) -> None:
        self.name = inner.name
        self._thread = thread
        self._inner = inner

    async def create(self, spec: SandboxSpec) -> Sandbox:
        work = self._thread.submit(self._inner.create(spec))
        try:
            inner = await self._thread.result(work)
        except asyncio.CancelledError:
            if work.done() and not work.cancelled() and work.exception() is None:
                with contextlib.suppress(SandboxError):  # it was closed, and the sandbox with it
                    await self._thread.run(work.result().kill())  # nobody waits for it
            raise
        return Sandbox(ThreadLink(self._thread, inner.link), self)

    async def enforcement(self) -> Enforcement:
        return await self._thread.run(self._inner.enforcement())

    async def gc(self) -> int:
        return await self._thread.run(self._inner.gc())

    async def aclose(self) -> None:
        await self._thread.run(self._inner.aclose())

    def provenance(self) -> Mapping[str, Any]:
        return self._inner.provenance()


class _Shared:
    """The process's thread and backends, made on first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.backends: dict[str, SharedBackend] = {}

    def get(self, name: str) -> SharedBackend:
        with self.lock:
            if name not in self.backends:
                self.thread = self.thread or sandbox_thread()
                made = self.thread.wait(_make(name))
                self.backends[name] = SharedBackend(self.thread, made)
            return self.backends[name]

    def close(self) -> None:
        with self.lock:
            thread, self.thread = self.thread, None
            backends, self.backends = self.backends, {}
            if thread is not None:
                for made in backends.values():
                    thread.wait(made._inner.aclose())
                thread.stop()


async def _make(name: str) -> SandboxBackend:
    return backend(name)


_shared = _Shared()


def shared_backend(name: str) -> SharedBackend:
    """Return this process's backend of that name, made on first use and closed at exit.

    `UnknownNameError` names the nearest ones.
    """
    return _shared.get(name)


def close_shared_backends() -> None:
    """Close what `shared_backend` made, with every sandbox in it; the next use makes new ones."""
    _shared.close()


def _forget_after_fork() -> None:
    global _shared
    # The parent's thread does not exist in a forked child.
    _shared = _Shared()


# Not `atexit`: that runs when executors take nothing any more, by which an engine ends containers.
threading._register_atexit(close_shared_backends)  # type: ignore[attr-defined]
on_fork(_forget_after_fork)
