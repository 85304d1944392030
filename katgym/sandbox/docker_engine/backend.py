"""Backend `docker`: sandboxes that are containers of a Docker Engine.

Not protected against: bugs in the kernel, which containers share with their host (a runtime such as
gVisor's `runsc` helps: option `runtime`). Not here: the engine's API (`engine.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from katgym.errors import UsageError
from katgym.sandbox.base import Enforcement, SandboxError, SandboxUnavailableError
from katgym.sandbox.docker_engine import labels, tree
from katgym.sandbox.docker_engine.container_link import ContainerLink
from katgym.sandbox.docker_engine.enforced import check_limits, describe
from katgym.sandbox.docker_engine.settings import HOME, WIPED, ContainerPlan, container_config
from katgym.sandbox.docker_engine.snapshots import Snapshots
from katgym.sandbox.docker_engine.stream import open_channel
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervised.bundle import SUPERVISOR_MODULES, bundle
from katgym.system.concurrency import SharedResults

if TYPE_CHECKING:
    from katgym.sandbox.docker_engine.engine import Engine

_log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0
_MODULES = (
    *SUPERVISOR_MODULES,
    "katgym.sandbox.supervisor.change_list",
    "katgym.sandbox.supervisor.baseline",
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
        self.live: dict[str, ContainerLink] = {}
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
        self.snapshots = Snapshots()

    def _enter_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Make what belongs to one event loop, as do images that are being looked for."""
        self._loop = loop
        self._starting = asyncio.Semaphore(self._max_starting)
        self._connecting = asyncio.Lock()
        self._images = SharedResults[str, Image]()
        self._image_trees = SharedResults[tuple[str, str], tree.Tree]()

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

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return Sandbox(await self.make(spec, {}), self)

    async def make(self, spec: SandboxSpec, patch: tree.Patch) -> ContainerLink:
        """Return the link to a container whose workspace is the layers', changed by a patch."""
        name = spec.image or self._default_image
        if name is None:
            raise UsageError(
                "backend 'docker' needs an image, of the spec or of the backend (`image`): a digest"
                " (name@sha256:...) or the id of a local one"
            )
        _check_spec(spec)
        engine = await self.engine()
        check_limits(engine.facts, spec.limits)
        image = await self._images.get(name, lambda: self._find_image(name))
        base = await self._base(image, spec)
        container = f"katgym-{uuid.uuid4().hex[:16]}"
        room = tree.total_size(base)
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
        # Of every command; an image's own variables are kept.
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "USER": "agent",
            "TMPDIR": "/tmp",
            **image.env,
            "HOME": HOME,
        }
        link = ContainerLink(self, spec, container, base, env)
        self.live[container] = link
        try:
            async with self._starting:
                sock = await self._start(engine, container, container_config(plan))
                await self._introduce(link, sock, patch)
        except BaseException:
            await link.kill()
            raise
        return link

    async def _start(self, engine: Engine, name: str, config: dict[str, Any]) -> socket.socket:
        """Start a container in a thread; if the caller is cancelled meanwhile, it is removed."""
        starting = asyncio.ensure_future(engine.run(engine.start, name, config))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError, UsageError):
                (await starting).close()
            raise

    async def _introduce(self, link: ContainerLink, sock: socket.socket, patch: tree.Patch) -> None:
        """Send the supervisor's program and the workspace; wait until it is there."""
        spec = link.spec
        channel = await open_channel(link.id, sock)
        link.attach(channel)
        wiped = [*WIPED, *spec.folders]
        arguments = (spec.workdir, spec.ttl_s, wiped)
        program = bundle(
            _MODULES, main=f"sys.modules[{_MODULES[-1]!r}].main{arguments!r}\n"
        ).encode()
        channel.send_raw(len(program).to_bytes(4, "big") + program)
        try:
            await channel.request("ping", timeout_s=_START_TIMEOUT_S)
        except SandboxError as e:
            if "katgym: the image's python3" in channel.last_words():
                raise UsageError(channel.last_words()) from e
            raise
        requests = (
            tree.layer_requests(spec.layers)
            if link.base is tree.merge_layers(spec.layers)
            else tree.put_requests((), link.base)
        )
        await link.start(requests, patch)

    async def _find_image(self, name: str) -> Image:
        """Return an image, pulled if it is missing."""
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

    async def _base(self, image: Image, spec: SandboxSpec) -> tree.Tree:
        """Return what the workspace starts from: the image's own, with the layers on it."""
        key = (image.id, spec.workdir)
        own = await self._image_trees.get(key, lambda: self._read_image_tree(image, spec))
        layered = await asyncio.to_thread(tree.merge_layers, spec.layers)
        if not own:
            return layered
        merged = dict(own)
        tree.overlay(merged, layered)
        return merged

    async def _read_image_tree(self, image: Image, spec: SandboxSpec) -> tree.Tree:
        from katgym.sandbox.docker_engine.image_tree import read_tree

        engine = await self.engine()
        spool = self.snapshots.folder / f"{uuid.uuid4().hex}.tar"
        made = labels.make_labels(spool.stem, 3600.0, {})

        def read() -> tree.Tree:
            return read_tree(engine.archive(image.id, spec.workdir, made), spool)

        return await engine.run(read)

    async def discard(self, link: ContainerLink) -> None:
        """Remove a sandbox's container; where the engine is gone, `gc` finds it later."""
        self.live.pop(link.id, None)
        if self._engine is not None:
            try:
                await self._engine.run(self._engine.remove, link.id)
            except SandboxError as e:
                _log.warning("%s", e)

    async def enforcement(self) -> Enforcement:
        try:
            engine = await self.engine()
        except SandboxUnavailableError as e:
            return describe(None, str(e), self._cpus)
        return describe(engine.facts, "", self._cpus, has_oom_score=engine.has_oom_score)

    async def gc(self) -> int:
        """Remove containers of katgym processes that are dead; return how many."""
        engine = await self.engine()
        rows = await engine.run(engine.list_labelled, labels.MARK)
        dead = [name for name, found in rows if labels.is_abandoned(found)]
        await asyncio.gather(*(engine.run(engine.remove, name) for name in dead))
        return len(dead)

    async def aclose(self) -> None:
        await asyncio.gather(*(link.kill() for link in list(self.live.values())))
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
            self._engine = None
        await asyncio.to_thread(self.snapshots.close)
        self._images.clear()
        self._image_trees.clear()

    def provenance(self) -> Mapping[str, Any]:
        found = self._images.list_finished()
        return {
            "backend": self.name,
            "level": "container",
            "engine": None if self._engine is None else self._engine.facts.version,
            "runtime": self._runtime,
            "images": {
                image.name: {"id": image.id, "digests": list(image.digests)} for image in found
            },
        }


def _check_spec(spec: SandboxSpec) -> None:
    if spec.python is not None or spec.preload:
        raise UsageError(
            f"backend 'docker' uses the image's own interpreter; `python` and `preload` are not"
            f" supported, got python={spec.python!r}, preload={spec.preload!r}"
        )
    for taken in ("/tmp", "/proc", "/sys", "/dev", HOME):
        for place in (spec.workdir, *spec.folders):
            if PurePosixPath(place).is_relative_to(taken):
                raise UsageError(f"folders may not be {taken} or below it, got {place!r}")
