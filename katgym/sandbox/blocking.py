"""A sandbox for code without an event loop: the same methods, each waiting for its result.

    with BlockingSandbox("local", SandboxSpec(layers=(layer,))) as sandbox:
        print(sandbox.exec("pytest -q").text())

Not here: the interface itself (`base.py`); under asyncio use that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from katgym.sandbox.backends import backend
from katgym.sandbox.base import AGENT, MAX_READ_BYTES, ExecResult, Sandbox, SandboxBackend
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.shared import SandboxThread
from katgym.sandbox.spec import SandboxSpec


class BlockingSandbox:
    """One sandbox with a backend and an event loop of its own; threads may share it.

    `close` (or leaving the `with`) kills the sandbox, closes the backend and ends the thread.
    """

    def __init__(self, name: str, spec: SandboxSpec, **options: Any) -> None:
        """Start a sandbox of backend `name` with its `options`; errors are those of `create`."""
        self._thread = SandboxThread()
        self._is_closed = False
        self._backend: SandboxBackend | None = None
        try:
            self._backend, self.sandbox = self._thread.wait(_start(name, spec, options))
        except BaseException:
            self.close()
            raise

    def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        user: str = AGENT,
    ) -> ExecResult:
        """Run a command to its end; see `Sandbox.exec`."""
        return self._thread.wait(
            self.sandbox.exec(command, cwd=cwd, env=env, stdin=stdin, limits=limits, user=user)
        )

    def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a file's bytes; see `Sandbox.read`."""
        return self._thread.wait(self.sandbox.read(path, max_bytes=max_bytes))

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace or create a file; see `Sandbox.write`."""
        self._thread.wait(self.sandbox.write(path, data, mode=mode))

    def diff(self) -> WorkspaceDiff:
        """Return what changed in the workspace; see `Sandbox.diff`."""
        return self._thread.wait(self.sandbox.diff())

    def close(self) -> None:
        """Kill the sandbox and release everything; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._backend is not None:
                self._thread.wait(self._backend.aclose())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
