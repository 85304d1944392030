"""vLLM servers as Ray's actors: Ray finds the GPUs, the server answers on its node's address.

An actor is one start of one server; Ray never restarts it. Whoever entered a `RayServer` sees in
`is_alive` that the server, its actor or its node is gone, and enters it again: another actor, where
there is room, whose server has the model's first weights until somebody sends it newer ones. Not
here: who does that (`katgym_trainer.rl.servers`), the process (`katgym.vllm_server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import pickle
import time
from pathlib import Path
from typing import Any, Self

from katgym.cluster.ray_cluster import node_address, ray
from katgym.errors import InfrastructureError, UsageError
from katgym.play.workers.worker_calls import pack_error
from katgym.vllm_server import VllmServer, VllmServerConfig

logger = logging.getLogger(__name__)

_AGAIN_S = 0.5
_TELL_S = 30.0
"""After so long, again and again, it is told what is waited for."""
_CPUS = 1
"""Processors that Ray keeps for a server."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a server's place is asked for, and how long.

    name: in messages. gpus: of one node; 0: it computes on processors. shared_file: one whose text
    is its name, which a node that sees the run's folder can read; None: it need not.
    """

    name: str
    gpus: int
    shared_file: Path | None
    patience_s: float
    """Wall seconds until a server that has never had a place gives up."""


class ServerActor:
    """What Ray runs: one server."""

    def __init__(self) -> None:
        self._server: VllmServer | None = None

    async def where(self) -> str:
        """Return the node."""
        return f"{node_address()} (node {ray.get_runtime_context().get_node_id()[:8]})"

    async def start(self, call: bytes) -> bytes:
        """Start the server; return its URL, or the error that says why it does not."""
        placement: Placement
        config: VllmServerConfig
        config, token, placement = pickle.loads(call)
        if os.environ.get("OMP_NUM_THREADS") == str(_CPUS):
            del os.environ["OMP_NUM_THREADS"]  # Ray's own
        try:
            if placement.shared_file is not None:
                _check_shared(placement.shared_file)
            host = node_address()
            self._server = VllmServer(dataclasses.replace(config, host=host), token=token)
            await self._server.__aenter__()
        except Exception as e:  # raised where the server was asked for
            return pack_error(e)
        return pickle.dumps(self._server.url)

    async def wait(self) -> tuple[int | None, str]:
        """Return the server's exit code and what became of it, once it has ended."""
        assert self._server is not None, "it was started"
        code = await asyncio.to_thread(self._server.wait)
        return code, self._server.end

    async def stop(self) -> None:
        """End the server and all that it started."""
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)


def _check_shared(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.read_text(encoding="utf-8") == file.name:
            return
    raise UsageError(
        f"this node does not see {str(file.parent)!r}, through which new weights get to servers:"
        " put the run's folder (--out) where every node with a server has it at the same path, or"
        " send weights from GPU to GPU ([policy] sync = 'nccl')"
    )


class RayServer:
    """A `ServerProcess` that is an actor; needs a connection (`ray_cluster.connected`)."""

    def __init__(self, config: VllmServerConfig, *, token: str, placement: Placement) -> None:
        self.config, self.log_file = config, config.log_file
        self.url = ""
        self.place = "none yet"
        """The node, or what is waited for."""
        self.exit_code: int | None = None
        """The server's; None while it runs, and where it was lost with its actor."""
        self.end = ""
        """What became of it, as far as is known; "" while it runs."""
        self._token, self._placement = token, placement
        self._actor: Any = None
        self._ending: asyncio.Task[None] | None = None
        self._is_placed = self._had_place = False

    @property
    def is_alive(self) -> bool:
        """Whether the server runs, as far as Ray knows."""
        return self._ending is not None and not self._ending.done()

    async def __aenter__(self) -> Self:
        """Have Ray find a place, and start the server there.

        A place that is lost meanwhile is looked for anew. Raises `UsageError` where there is none
        within `patience_s`, unless there has been one, and what `VllmServer.start` raises.
        """
        await self.__aexit__()
        while True:
            try:
                await self._start()
            except ray.exceptions.RayTaskError:
                raise  # the actor answers with errors: this is a fault of ours
            except ray.exceptions.RayError as e:
                logger.warning("%s lost its place as it started: %s", self._placement.name, e)
                await self.__aexit__()
                await asyncio.sleep(_AGAIN_S)
            else:
                return self

    async def __aexit__(self, *_: object) -> None:
        """End the server and give its place back; may be called twice."""
        actor, self._actor = self._actor, None
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.cancel()
        if actor is None:
            return
        try:
            if self._is_placed:  # its GPUs are free before Ray gives them to another
                await asyncio.wait_for(actor.stop.remote(), self.config.stop_timeout_s + 20)
        except (ray.exceptions.RayError, TimeoutError) as e:
            logger.debug("%s: %s", self._placement.name, e)
        finally:
            ray.kill(actor)

    async def _start(self) -> None:
        self.exit_code, self.end, self._is_placed = None, "", False
        self._actor = ray.remote(
            num_cpus=_CPUS, num_gpus=self._placement.gpus, max_restarts=0, max_task_retries=0
        )(ServerActor).remote()
        self.place = await self._find_place()
        self._is_placed = self._had_place = True
        call = pickle.dumps((self.config, self._token, self._placement))
        found = pickle.loads(await self._actor.start.remote(call))
        if isinstance(found, UsageError):
            raise UsageError(f"{self._placement.name} on {self.place}: {found}") from found
        if isinstance(found, Exception):
            raise InfrastructureError(f"{self._placement.name} on {self.place}: {found}") from found
        self.url = found
        self._ending = asyncio.create_task(self._notice_end(self._actor))
        logger.info("%s is at %s, on %s", self._placement.name, self.url, self.place)

    async def _find_place(self) -> str:
        """Return where Ray has put the actor, however long that takes."""

        async def ask() -> str:
            return str(await self._actor.where.remote())

        asking, began = asyncio.create_task(ask()), time.monotonic()
        try:
            while not (await asyncio.wait([asking], timeout=self._look_s(began)))[0]:
                waited_s = time.monotonic() - began
                self.place = _explain_wait(self._placement.gpus)
                told = f"{self._placement.name} {self.place}"
                if not self._had_place and waited_s >= self._placement.patience_s:
                    raise UsageError(
                        f"{told}: {waited_s:.0f} s were enough ([cluster] patience_s). Ask for"
                        " fewer [[policy.servers]] (count) or smaller ones (gpus), or add nodes"
                    )
                logger.warning("%s; it has waited %.0f s", told, waited_s)
            return await asking
        finally:
            asking.cancel()

    def _look_s(self, began: float) -> float:
        """Return how long nothing is told from here."""
        if self._had_place:
            return _TELL_S
        left_s = self._placement.patience_s - (time.monotonic() - began)
        return min(_TELL_S, max(0.0, left_s))

    async def _notice_end(self, actor: Any) -> None:
        try:
            self.exit_code, self.end = await actor.wait.remote()
        except ray.exceptions.RayError as e:
            logger.warning("%s on %s: %s", self._placement.name, self.place, type(e).__name__)


def _explain_wait(gpus: int) -> str:
    """Say what a server waits for, beside what there is."""
    kind, num = ("GPU", gpus) if gpus else ("CPU", _CPUS)
    has = [node["Resources"].get(kind, 0) for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources().get(kind, 0)
    return (
        f"waits for a node with {num} {kind}s to spare; the cluster has {sum(has):g}, at most"
        f" {max(has, default=0):g} on a node, and {free:g} are free"
    )
