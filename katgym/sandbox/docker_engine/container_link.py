"""The link to one container: its supervisor is PID 1, its workspace is put there and compared.

Not here: creating the container (`backend.py`), comparing (`katgym.sandbox.supervisor.baseline`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, SandboxError
from katgym.sandbox.changes import ChangeKind, FileChange, WorkspaceDiff, parse_changes
from katgym.sandbox.docker_engine.snapshots import Snapshots
from katgym.sandbox.docker_engine.tree import (
    MAX_PUT_BYTES,
    Patch,
    PutRequest,
    Tree,
    TreeEntry,
    put_requests,
)
from katgym.sandbox.operations import Diff, Link
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervised.channel import Channel
from katgym.sandbox.supervised.supervised_link import TREE_TIMEOUT_S, SupervisedLink
from katgym.sandbox.supervisor.change_list import MAX_MANIFEST_BYTES

_INLINE_BYTES = 32 << 20
"""Of all contents in one list of changes, which count as memory of the container meanwhile."""
_ALL = 1 << 30


class ContainerMaker(Protocol):
    """What a container's link needs of the backend that made it."""

    snapshots: Snapshots

    async def make(self, spec: SandboxSpec, patch: Patch) -> Link:
        """Return the link to a new container whose workspace is the layers', changed by a patch."""

    async def discard(self, link: ContainerLink) -> None:
        """Remove a container."""


class ContainerLink(SupervisedLink):
    """One live container."""

    def __init__(
        self,
        maker: ContainerMaker,
        spec: SandboxSpec,
        name: str,
        base: Tree,
        base_env: Mapping[str, str],
    ) -> None:
        super().__init__(name, spec, base_env)
        self.base = base
        """What the workspace starts from: the image's own folder with the layers on it."""
        self._maker = maker
        self._kill_task: asyncio.Task[None] | None = None

    def attach(self, channel: Channel) -> None:
        """Take the supervisor's channel, which `kill` closes; `SandboxError` if that came first."""
        self.channel = channel
        if self.end is not None:
            channel.close()
            raise SandboxError(f"sandbox {self.id} {self.end}")

    async def start(self, requests: Iterable[PutRequest], patch: Patch) -> None:
        """Fill the workspace: called once, by the backend."""
        await self._put(requests, is_baseline=True)
        if patch:
            await self._put(_patch_requests(patch), is_baseline=False)

    def check_user(self, user: str) -> None:
        if user != AGENT:
            raise UsageError(f"commands in containers run as user 'agent' only, got {user!r}")

    def check_snapshot(self, name: str) -> None:
        self._maker.snapshots.find(name, self.spec)

    async def compare(self, operation: Diff) -> WorkspaceDiff:
        fields = {
            "max_file_bytes": operation.max_file_bytes,
            "max_changes": operation.max_changes,
            "max_bytes": _INLINE_BYTES if operation.max_file_bytes else 0,
            "max_manifest_bytes": MAX_MANIFEST_BYTES,
        }
        reply, data = await self.live().request(
            "changes",
            fields,
            max_reply_bytes=MAX_MANIFEST_BYTES + _INLINE_BYTES,
            timeout_s=TREE_TIMEOUT_S,
        )
        try:
            return parse_changes(reply, data)
        except ValueError as e:
            raise SandboxError(f"sandbox {self.id} sent a broken list of changes: {e}") from e

    async def freeze(self) -> str:
        """Keep the workspace as it is, but for sockets and fifos."""
        diff = await self.compare(Diff(max_file_bytes=0, max_changes=_ALL))
        if diff.num_omitted:
            raise SandboxError(f"{diff.num_omitted} files of {self.id} are too deep to be kept")
        patch: dict[str, TreeEntry | None] = {}
        files = []
        for change in diff:
            if change.kind is ChangeKind.DELETED or change.file_type == "other":
                patch[change.path] = None
                continue
            patch[change.path] = TreeEntry(
                kind=change.file_type, mode=change.mode, size=change.size, link=change.link_target
            )
            if change.file_type == "file":
                files.append(change)  # its content follows
        with self._maker.snapshots.spool() as spool:
            async for change, content in self._fetch(files):
                source, offset = spool(content)
                patch[change.path] = TreeEntry(
                    kind="file", mode=change.mode, size=len(content), source=source, offset=offset
                )
        return self._maker.snapshots.keep(self.spec, patch)

    async def restore(self, to: str | None) -> None:
        target = {} if to is None else self._maker.snapshots.find(to, self.spec)
        diff = await self.compare(Diff(max_file_bytes=0, max_changes=_ALL))
        if diff.num_omitted:  # not all of the agent's tree can be named, so it goes as a whole
            await self.live().request("clear", timeout_s=TREE_TIMEOUT_S)
            await self._put(_patch_requests({**self.base, **target}), is_baseline=False)
            return
        touched = {change.path for change in diff} | target.keys()
        if touched:
            wanted = {path: target.get(path, self.base.get(path)) for path in touched}
            await self._put(_patch_requests(wanted), is_baseline=False)

    async def forget(self, name: str) -> None:
        self._maker.snapshots.forget(name)

    async def sibling(self, at: str) -> Link:
        return await self._maker.make(self.spec, self._maker.snapshots.find(at, self.spec))

    async def kill(self) -> None:
        if self._kill_task is None:
            self.end = "was killed"
            self._kill_task = asyncio.create_task(self._kill())
        await asyncio.shield(self._kill_task)

    async def _kill(self) -> None:
        if self.channel is not None:
            self.channel.close()
        await self._maker.discard(self)

    async def _put(self, requests: Iterable[PutRequest], *, is_baseline: bool) -> None:
        for removed, entries, payload in requests:
            fields = {"removed": removed, "entries": entries, "is_baseline": is_baseline}
            await self.live().request("put", fields, payload, timeout_s=TREE_TIMEOUT_S)

    async def _fetch(self, files: Sequence[FileChange]) -> AsyncIterator[tuple[FileChange, bytes]]:
        """Yield files with their content, as many a request as fit."""
        index = 0
        while index < len(files):
            names = [change.path for change in files[index : index + 1000]]
            fields = {"paths": names, "max_bytes": MAX_PUT_BYTES}
            reply, data = await self.live().request(
                "fetch",
                fields,
                max_reply_bytes=MAX_PUT_BYTES + files[index].size,
                timeout_s=TREE_TIMEOUT_S,
            )
            lengths = [int(n) for n in reply["lengths"]]
            if not lengths or len(lengths) > len(names) or min(lengths) < 0:
                raise SandboxError(f"sandbox {self.id} sent the contents of {len(lengths)} files")
            for length in lengths:
                yield files[index], data[:length]
                data = data[length:]
                index += 1


def _patch_requests(patch: Patch) -> Iterable[PutRequest]:
    present = {path: entry for path, entry in patch.items() if entry is not None}
    return put_requests([path for path, entry in patch.items() if entry is None], present)
