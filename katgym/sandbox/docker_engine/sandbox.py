"""One container as a `Sandbox`: everything goes through the supervisor that is its PID 1.

Not here: creating the container (`backend.py`), comparing trees (`trees.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, MAX_READ_BYTES, ExecResult, Sandbox, SandboxError
from katgym.sandbox.changes import FileChange, WorkspaceDiff
from katgym.sandbox.docker_engine.trees import (
    MAX_PUT_BYTES,
    Entry,
    Patch,
    PutRequest,
    Row,
    Tree,
    put_requests,
    row_of,
)
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervisor.channel import Channel
from katgym.sandbox.supervisor.commands import (
    CommandRequest,
    argv_of,
    check_environment,
    reply_bytes,
    resource_limits,
    result_of,
)

if TYPE_CHECKING:
    from katgym.sandbox.docker_engine.backend import DockerBackend

_GRACE_S = 30.0
"""How much longer than its limit a command may take to be answered."""
_TREE_TIMEOUT_S = 300.0
_MANIFEST_BYTES = 128 << 20
_INLINE_BYTES = 32 << 20
_ALL = 1 << 30


class DockerSandbox(Sandbox):
    """One live container."""

    def __init__(
        self,
        backend: DockerBackend,
        spec: SandboxSpec,
        name: str,
        base: Tree,
        base_env: Mapping[str, str],
    ) -> None:
        self.backend: DockerBackend = backend
        self.spec = spec
        self.id = name
        self.base = base
        self._base_env = base_env
        self._channel: Channel | None = None
        self._patch: Patch = {}
        """How the workspace that the supervisor marked last differs from the layers."""
        self._kill_task: asyncio.Task[None] | None = None
        self._tree_lock = asyncio.Lock()
        self._gate = asyncio.Event()
        """Cleared while the tree is read or changed as a whole: nothing starts then."""
        self._gate.set()

    def attach(self, channel: Channel) -> None:
        """Take the supervisor's channel, which `kill` closes; `SandboxError` if that came first."""
        self._channel = channel
        if self._kill_task is not None:
            channel.close()
            raise SandboxError(f"sandbox {self.id} was killed")

    async def start(self, requests: Iterable[PutRequest], patch: Patch) -> None:
        """Fill the workspace: called once, by the backend."""
        pending = list(requests)
        if patch:
            present = {path: entry for path, entry in patch.items() if entry is not None}
            removed = [path for path, entry in patch.items() if entry is None]
            pending += put_requests(removed, present)
        await self._put(pending, is_complete=True)
        self._patch = patch

    async def _open_gate(self) -> Channel:
        while not self._gate.is_set():
            await self._gate.wait()
        return self._live

    @property
    def _live(self) -> Channel:
        if self._channel is None or self._kill_task is not None:
            raise SandboxError(f"sandbox {self.id} was killed")
        return self._channel

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
        """See `Sandbox.exec`; the only user is "agent"."""
        if user != AGENT:
            raise UsageError(f"commands in containers run as user 'agent' only, got {user!r}")
        check_environment(env or {})
        bound = self.spec.limits if limits is None else self.spec.limits.tightened(limits)
        merged = {**self._base_env, **self.spec.env, **(env or {})}
        request = CommandRequest(
            argv=argv_of(command), cwd=cwd, env=merged, limits=bound, user=user
        )
        channel = await self._open_gate()
        reply, data = await channel.request(
            "exec",
            request.fields(resource_limits(bound, has_cgroup=True)),
            stdin,
            max_reply_bytes=reply_bytes(bound),
            timeout_s=None if bound.wall_s is None else bound.wall_s + _GRACE_S,
        )
        result, _ = result_of(reply, data, bound)
        if result.is_out_of_memory and result.limit_hit is None:
            result = replace(result, limit_hit="memory_bytes")
        return result

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox.read`."""
        fields = {"path": path, "max_bytes": max_bytes}
        channel = await self._open_gate()
        _, data = await channel.request(
            "read", fields, max_reply_bytes=max_bytes, timeout_s=_TREE_TIMEOUT_S
        )
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        fields = {"path": path, "mode": mode}
        channel = await self._open_gate()
        await channel.request("write", fields, data, timeout_s=_TREE_TIMEOUT_S)

    async def diff(
        self, *, max_file_bytes: int = MAX_READ_BYTES, max_changes: int = 10_000
    ) -> WorkspaceDiff:
        """See `Sandbox.diff`."""
        async with self._still():
            # More than are asked for: some may turn out to be as they were.
            rows, num_omitted = await self._rows(max_file_bytes, 2 * max_changes + 10_000)
            rows = [await self._decided(row) for row in rows]
        seen = {row.path for row in rows}
        rows += [
            row_of(path, entry, max_file_bytes=max_file_bytes)
            for path, entry in self._patch.items()
            if path not in seen
        ]
        changes: list[FileChange] = []
        for row in sorted(rows, key=lambda row: row.path):
            base = self.base.get(row.path)
            if row.differs(base):
                change = row.change(base)
                if change.size > max_file_bytes and change.content is not None:
                    change = replace(change, content=None)
                changes.append(change)
        num_omitted += max(0, len(changes) - max_changes)
        return WorkspaceDiff(changes=tuple(changes[:max_changes]), num_omitted=num_omitted)

    async def snapshot(self) -> str:
        """See `Sandbox.snapshot`; sockets and fifos are not kept."""
        async with self._still():
            rows, num_omitted = await self._rows(0, _ALL)
            if num_omitted:
                raise SandboxError(f"{num_omitted} files of {self.id} are too deep to be kept")
            patch: dict[str, Entry | None] = dict(self._patch)
            files = [row for row in rows if row.kind == "file"]
            with self.backend.spool() as spool:
                for row in rows:
                    patch[row.path] = _entry(row)  # of files their content comes below
                async for row, content in self._contents(files):
                    source, offset = spool.add(content)
                    kept = Entry(
                        kind="file",
                        mode=row.mode,
                        size=len(content),
                        source=source,
                        offset=offset,
                    )
                    patch[row.path] = kept
        return self.backend.keep_snapshot(self, patch)

    async def reset(self, to: str | None = None) -> None:
        """See `Sandbox.reset`."""
        target = {} if to is None else self.backend.snapshot_of(self, to)
        async with self._still():
            rows, num_omitted = await self._rows(0, _ALL)
            touched = {row.path for row in rows}
            for path in self._patch.keys() | target.keys():
                if self._patch.get(path, self.base.get(path)) != target.get(
                    path, self.base.get(path)
                ):
                    touched.add(path)
            wanted = {path: target.get(path, self.base.get(path)) for path in touched}
            present = {path: entry for path, entry in wanted.items() if entry is not None}
            removed = [path for path, entry in wanted.items() if entry is None]
            if num_omitted:  # not all of the agent's tree can be named, so it goes as a whole
                named = {**self.base, **target}
                whole = {path: entry for path, entry in named.items() if entry is not None}
                await self._live.request("clear", timeout_s=_TREE_TIMEOUT_S)
                await self._put(put_requests((), whole), is_complete=True)
            elif touched:
                await self._put(put_requests(removed, present), is_complete=False)
            self._patch = target
            await self._live.request("wipe", timeout_s=_TREE_TIMEOUT_S)

    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """See `Sandbox.fork`; a new container each."""
        if num < 1:
            raise UsageError(f"fork makes at least one sandbox, got num={num!r}")
        origin = at if at is not None else await self.snapshot()
        patch = self.backend.snapshot_of(self, origin)
        results = await asyncio.gather(
            *(self.backend.make(self.spec, patch) for _ in range(num)), return_exceptions=True
        )
        made = [r for r in results if isinstance(r, DockerSandbox)]
        failed = [r for r in results if isinstance(r, BaseException)]
        if failed:
            await asyncio.gather(*(sandbox.kill() for sandbox in made))
            raise failed[0]
        return list(made)

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._kill_task is None:
            self._kill_task = asyncio.create_task(self._kill())
        await asyncio.shield(self._kill_task)

    async def _kill(self) -> None:
        if self._channel is not None:
            self._channel.close()
        await self.backend.discard(self)

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        """End every command, and let nobody else change the tree meanwhile."""
        async with self._tree_lock:
            self._gate.clear()
            try:
                await self._live.request("stop", timeout_s=_GRACE_S)
                yield
            finally:
                self._gate.set()

    async def _put(self, requests: Iterable[PutRequest], *, is_complete: bool) -> None:
        pending = list(requests)
        for index, request in enumerate(pending):
            is_last = index + 1 == len(pending)
            # All but the last of a complete filling leave the marking to the last.
            fields = request.fields(is_marked=is_last or not is_complete, is_complete=is_complete)
            await self._live.request("put", fields, request.payload, timeout_s=_TREE_TIMEOUT_S)

    async def _rows(self, max_file_bytes: int, max_changes: int) -> tuple[list[Row], int]:
        """Return what may have changed since the supervisor's mark, and how much is left out."""
        fields = {
            "max_file_bytes": max_file_bytes,
            "max_bytes": _INLINE_BYTES if max_file_bytes else 0,
            "max_changes": max_changes,
            "max_manifest_bytes": _MANIFEST_BYTES,
        }
        reply, data = await self._live.request(
            "changes",
            fields,
            max_reply_bytes=_MANIFEST_BYTES + _INLINE_BYTES,
            timeout_s=_TREE_TIMEOUT_S,
        )
        try:
            return _parse_rows(reply, data), int(reply["omitted"])
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise SandboxError(f"sandbox {self.id} sent a broken list of changes: {e}") from e

    async def _decided(self, row: Row) -> Row:
        """Return a row with content where only that tells whether the file has changed."""
        base = self.base.get(row.path)
        is_open = row.kind == "file" and row.content is None
        if not is_open or base is None or base.kind != "file" or base.size != row.size:
            return row
        async for _, content in self._contents([row]):
            return replace(row, content=content)
        return row

    async def _contents(self, rows: Sequence[Row]) -> AsyncIterator[tuple[Row, bytes]]:
        """Yield files with their content, as many a request as fit."""
        index = 0
        while index < len(rows):
            names = [row.path for row in rows[index : index + 1000]]
            fields = {"paths": names, "max_bytes": MAX_PUT_BYTES}
            reply, data = await self._live.request(
                "fetch",
                fields,
                max_reply_bytes=MAX_PUT_BYTES + rows[index].size,
                timeout_s=_TREE_TIMEOUT_S,
            )
            lengths = [int(n) for n in reply["lengths"]]
            if not lengths or len(lengths) > len(names) or min(lengths) < 0:
                raise SandboxError(f"sandbox {self.id} sent the contents of {len(lengths)} files")
            for length in lengths:
                yield rows[index], data[:length]
                data = data[length:]
                index += 1


def _parse_rows(reply: Mapping[str, Any], data: bytes) -> list[Row]:
    end = int(reply["manifest_bytes"])
    rows = []
    for item in json.loads(data[:end]):
        content = None
        if item[5]:
            content = data[end : end + item[3]]
            end += item[3]
        rows.append(Row.parse(item, content))
    return rows


def _entry(row: Row) -> Entry | None:
    if row.kind in (None, "other"):
        return None
    return Entry(kind=str(row.kind), mode=row.mode, size=row.size, link=row.link)
