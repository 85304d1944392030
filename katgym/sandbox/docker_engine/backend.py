"""Backend `docker`: sandboxes that are containers of a Docker Engine.

Not protected against: bugs in the kernel, which containers share with their host (a runtime such as
gVisor's `runsc` helps: option `runtime`). Not here: the engine's API (`engine.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from katgym.concurrency import SharedResults
from katgym.errors import UsageError
from katgym.sandbox.base import (
    Enforcement,
    SandboxBackend,
    SandboxError,
    SandboxUnavailableError,
)
from katgym.sandbox.docker_engine import labels, trees
from katgym.sandbox.docker_engine.enforced import check_limits, describe
from katgym.sandbox.docker_engine.sandbox import DockerSandbox
from katgym.sandbox.docker_engine.settings import HOME, WIPED, ContainerPlan, container_config
from katgym.sandbox.docker_engine.stream import open_channel
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervisor.bundle import SUPERVISOR_MODULES, bundle

if TYPE_CHECKING:
    from katgym.sandbox.docker_engine.engine import Engine

_log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0
_MODULES = (
    *SUPERVISOR_MODULES,
    "katgym.sandbox.supervisor.trees",
    "katgym.sandbox.supervisor.seccomp",
    "katgym.sandbox.docker_engine.inside",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as it was found: what `create` was asked for, and what that stood for."""

    name: str
    id: str
    digests: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    layers: tuple[str, ...]
    image: str | None
    patch: trees.Patch


class Spool:
    """Contents of one snapshot, in one file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def add(self, content: bytes) -> tuple[Path, int]:
        """Keep some bytes; return where they are."""
        offset = self._file.tell()
        self._file.write(content)
        return self._path, offset


class DockerBackend(SandboxBackend):
    """Makes containers; see the module."""

    name = "docker"

    def __init__(
        self,
        base_url: str | None = None,
        *,
        image: str | None = None,
        max_concurrency: int = 64,
        max_starting: int = 4,
        cpus: float | None = 2.0,
        is_pulling: bool = True,
        python: str = "python3",
        runtime: str | None = None,
    ) -> None:
        """Prepare; the engine is asked at the first `create`.

        base_url: of the engine; None takes DOCKER_HOST or the local socket.
        image: for specs that name none.
        max_concurrency: calls of the engine at the same time; size of the connection pool.
        max_starting: containers being started at the same time; engines get slower beyond a few.
        cpus: CPUs a container may use, at most those there are; None does not limit them.
        is_pulling: whether an image that is missing is pulled.
        python: interpreter inside the images, for the supervisor.
        runtime: OCI runtime, such as "runsc"; None is the engine's default.
        """
        for option, value in (("max_concurrency", max_concurrency), ("max_starting", max_starting)):
            if value < 1:
                raise UsageError(f"{option} is at least 1, got {value!r}")
        self.live: dict[str, DockerSandbox] = {}
        self._base_url = base_url
        self._default_image = image
        self._max_concurrency = max_concurrency
        self._cpus = cpus
        self._is_pulling = is_pulling
        self._python = python
        self._runtime = runtime
        self._max_starting = max_starting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._enter_loop(None)
        self._engine: Engine | None = None
        self._snapshots: dict[str, _Snapshot] = {}
        self._folder: Path | None = None

    def _enter_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Make what belongs to one event loop, as do images that are being looked for."""
        self._loop = loop
        self._starting = asyncio.Semaphore(self._max_starting)
        self._connecting = asyncio.Lock()
        self._images = SharedResults[str, Image]()
        self._image_trees = SharedResults[tuple[str, str], trees.Tree]()

    async def engine(self) -> Engine:
        """Return the engine, connected; `SandboxUnavailableError` if none answers."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter_loop(loop)
        async with self._connecting:
            if self._engine is None:
                from katgym.sandbox.docker_engine.engine import Engine

                self._engine = await asyncio.to_thread(
                    Engine, base_url=self._base_url, max_concurrency=self._max_concurrency
                )
        return self._engine

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """See `SandboxBackend.create`."""
        return await self.make(spec, {})

    async def make(self, spec: SandboxSpec, patch: trees.Patch) -> DockerSandbox:
        """Return a sandbox whose workspace is the layers', changed by a patch."""
        name = spec.image or self._default_image
        if name is None:
            raise UsageError(
                "backend 'docker' needs an image, of the spec or of the backend (`image`): a digest"
                " (name@sha256:...) or the id of a local one"
            )
        _check_spec(spec)
        engine = await self.engine()
        check_limits(engine.facts, spec.limits)
        image = await self.find_image(name)
        base = await self._base(image, spec)
        container = f"katgym-{uuid.uuid4().hex[:16]}"
        room = trees.total_size(base)
        plan = ContainerPlan(
            spec=spec,
            image_id=image.id,
            labels=labels.make_labels(container, spec.ttl_s, spec.labels),
            facts=engine.facts,
            num_base_bytes=room,
            num_base_files=len(base),
            cpus=self._cpus,
            runtime=self._runtime,
            python=self._python,
        )
        sandbox = DockerSandbox(self, spec, container, base, {**_base_env(image.env), **spec.env})
        self.live[container] = sandbox
        try:
            async with self._starting:
                sock = await self._start(engine, container, container_config(plan))
                await self._introduce(sandbox, sock, patch)
        except BaseException:
            await sandbox.kill()
            raise
        return sandbox

    async def _start(self, engine: Engine, name: str, config: dict[str, Any]) -> socket.socket:
        """Start a container in a thread; if the caller is cancelled meanwhile, it is removed."""
        starting = asyncio.ensure_future(engine.run(engine.start, name, config))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError, UsageError):
                (await starting).close()
            raise

    async def _introduce(
        self, sandbox: DockerSandbox, sock: socket.socket, patch: trees.Patch
    ) -> None:
        """Send the supervisor's program and the workspace; wait until it is there."""
        spec = sandbox.spec
        channel, stream = await open_channel(sandbox.id, sock)
        sandbox.attach(channel)
        wiped = list(WIPED)
        arguments = (spec.workdir, spec.ttl_s, wiped)
        program = bundle(
            _MODULES, main=f"sys.modules[{_MODULES[-1]!r}].main{arguments!r}\n"
        ).encode()
        channel.send_raw(len(program).to_bytes(4, "big") + program)
        try:
            await channel.request("ping", timeout_s=_START_TIMEOUT_S)
        except SandboxError as e:
            if "katgym: the image's python3" in stream.last_words():
                raise UsageError(stream.last_words()) from e
            raise
        requests = (
            trees.layer_requests(spec.layers)
            if sandbox.base is trees.merged_tree(spec.layers)
            else trees.put_requests((), sandbox.base)
        )
        await sandbox.start(requests, patch)

    async def find_image(self, name: str) -> Image:
        """Return an image, pulled if it is missing; asked for once per backend object."""
        return await self._images.get(name, lambda: self._find_image(name))

    async def _find_image(self, name: str) -> Image:
        engine = await self.engine()
        found = await engine.run(engine.image, name)
        if found is None:
            if not self._is_pulling or name.startswith("sha256:"):
                raise UsageError(
                    f"the Docker Engine has no image {name!r}; `docker images` lists those it has,"
                    f" `docker pull` fetches others"
                )
            await engine.run(engine.pull, name)
            found = await engine.run(engine.image, name)
            if found is None:
                raise SandboxError(f"image {name!r} was pulled, and is not there")
        if "@sha256:" not in name and not name.startswith("sha256:"):
            _log.warning("image %r is a name that may move; it is %s here", name, found["Id"])
        env = (found.get("Config") or {}).get("Env") or ()
        return Image(
            name=name,
            id=found["Id"],
            digests=tuple(found.get("RepoDigests") or ()),
            env=dict(item.split("=", 1) for item in env if "=" in item),
        )

    async def _base(self, image: Image, spec: SandboxSpec) -> trees.Tree:
        """Return what the workspace starts from: the image's own, with the layers on it."""
        key = (image.id, spec.workdir)
        own = await self._image_trees.get(key, lambda: self._read_image_tree(image, spec))
        layered = await asyncio.to_thread(trees.merged_tree, spec.layers)
        if not own:
            return layered
        merged = dict(own)
        trees.overlay(merged, layered)
        return merged

    async def _read_image_tree(self, image: Image, spec: SandboxSpec) -> trees.Tree:
        from katgym.sandbox.docker_engine.image_tree import read_tree

        engine = await self.engine()
        spool = self.folder / f"{uuid.uuid4().hex}.tar"
        made = labels.make_labels(spool.stem, 3600.0, {})

        def read() -> trees.Tree:
            return read_tree(engine.archive(image.id, spec.workdir, made), spool)

        return await engine.run(read)

    @property
    def folder(self) -> Path:
        """Where this backend keeps contents of snapshots and images; removed by `aclose`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="katgym-docker-"))
        return self._folder

    @contextlib.contextmanager
    def spool(self) -> Iterator[Spool]:
        """Return a place for contents that stay until `aclose`."""
        path = self.folder / f"{uuid.uuid4().hex}.bin"
        with path.open("wb") as file:
            yield Spool(path, file)

    def keep_snapshot(self, sandbox: DockerSandbox, patch: trees.Patch) -> str:
        """Keep a snapshot; return its id."""
        name = f"snapshot-{uuid.uuid4().hex[:16]}"
        spec = sandbox.spec
        digests = tuple(layer.digest for layer in spec.layers)
        self._snapshots[name] = _Snapshot(layers=digests, image=spec.image, patch=patch)
        return name

    def snapshot_of(self, sandbox: DockerSandbox, name: str) -> trees.Patch:
        """Return a snapshot that fits a sandbox; `UsageError` if there is none."""
        found = self._snapshots.get(name)
        if found is None:
            raise UsageError(f"no snapshot {name!r} in this backend; `snapshot()` makes one")
        digests = tuple(layer.digest for layer in sandbox.spec.layers)
        if (found.layers, found.image) != (digests, sandbox.spec.image):
            raise UsageError(f"snapshot {name!r} was made from other layers or another image")
        return found.patch

    async def discard(self, sandbox: DockerSandbox) -> None:
        """Remove a sandbox's container; where the engine is gone, `gc` finds it later."""
        self.live.pop(sandbox.id, None)
        if self._engine is not None:
            try:
                await self._engine.run(self._engine.remove, sandbox.id)
            except SandboxError as e:
                _log.warning("%s", e)

    async def enforcement(self) -> Enforcement:
        """See `SandboxBackend.enforcement`."""
        try:
            engine = await self.engine()
        except SandboxUnavailableError as e:
            return describe(None, str(e), self._cpus)
        return describe(engine.facts, "", self._cpus, has_oom_score=engine.has_oom_score)

    async def gc(self) -> int:
        """Remove containers of katgym processes that are dead; return how many."""
        engine = await self.engine()
        rows = await engine.run(engine.labelled, labels.MARK)
        dead = [name for name, found in rows if labels.is_abandoned(found)]
        await asyncio.gather(*(engine.run(engine.remove, name) for name in dead))
        return len(dead)

    async def aclose(self) -> None:
        """See `SandboxBackend.aclose`."""
        await asyncio.gather(*(sandbox.kill() for sandbox in list(self.live.values())))
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
            self._engine = None
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None
        self._snapshots.clear()
        self._images.clear()
        self._image_trees.clear()

    def provenance(self) -> Mapping[str, Any]:
        """See `SandboxBackend.provenance`."""
        found = self._images.finished()
        return {
            "backend": self.name,
            "level": "container",
            "engine": None if self._engine is None else self._engine.facts.version,
            "runtime": self._runtime,
            "images": {image.name: _image_record(image) for image in found},
        }


def _image_record(image: Image) -> dict[str, Any]:
    return {"id": image.id, "digests": list(image.digests)}


def _base_env(image_env: Mapping[str, str]) -> dict[str, str]:
    """Return what every command's environment starts from; an image's own variables are kept."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "agent",
        "TMPDIR": "/tmp",
        **image_env,
        "HOME": HOME,
    }


def _check_spec(spec: SandboxSpec) -> None:
    if spec.python is not None or spec.preload:
        raise UsageError(
            f"backend 'docker' uses the image's own interpreter; `python` and `preload` are not"
            f" supported, got python={spec.python!r}, preload={spec.preload!r}"
        )
    for taken in ("/tmp", "/proc", "/sys", "/dev", HOME):
        if PurePosixPath(spec.workdir).is_relative_to(taken):
            raise UsageError(f"workdir may not be {taken} or below it, got {spec.workdir!r}")
