"""The ranks of a trainer as one gang: placed all or none, ended together, started again together.

    code = RankGang(config, ["train", "rl", "/runs/rl.toml"], folder=folder, find_step=...).run()

Each rank is a process of its own, told its place as torchrun tells it: RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Only what they print and signals go through
here. Not here: what they do, which is the command's under torchrun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from katgym.cluster.cluster_config import JOINED, NODE_ADDRESS, ClusterConfig
from katgym.cluster.cluster_file import keep_file
from katgym.cluster.rank_actor import Printed, RankActor, RankPlace
from katgym.cluster.rank_process import CRASHED
from katgym.cluster.ray_cluster import (
    connected,
    list_hosts,
    place,
    ray,
)
from katgym.errors import InfrastructureError, UsageError
from katgym.system.openmp import without_settled

logger = logging.getLogger(__name__)

ENVIRON = ("KATGYM_", "HF_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "WANDB_")
"""Variables of the command that ranks elsewhere are given, too, by how they begin."""
_GRACE_S = 15.0
"""When a rank has ended with an error, the others say within this time what they know."""
_END_S = 10.0
_AGAIN_S = 5.0


@dataclass(slots=True, kw_only=True)
class Rank:
    """One process of the gang that runs.

    Example:
        Rank(number=0, actor=..., place=RankPlace(...), pid=29497)
    """

    number: int
    actor: Any
    place: RankPlace
    pid: int = 0
    code: int | None = None
    """How it ended; negative: by that signal. None: it runs, or was lost."""
    is_lost: bool = False
    """Whether Ray has lost its actor."""
    rests: dict[bool, bytes] = field(default_factory=lambda: {False: b"", True: b""})
    """Of lines that are not ended; True: of standard error."""

    def tell_end(self) -> str:
        """Return what became of it, in words."""
        name = f"rank {self.number} (process {self.pid} on node {self.place.node})"
        if self.is_lost:
            return f"{name} is lost"
        if self.code is None:
            return f"{name} does not answer"
        if self.code < 0:
            return f"{name} was ended by {signal.Signals(-self.code).name}"
        return f"{name} ended with exit code {self.code}"


class RankGang:
    """Starts the ranks, and starts them again as long as that brings new checkpoints."""

    def __init__(
        self,
        config: ClusterConfig,
        arguments: Sequence[str],
        *,
        folder: Path,
        needs: Sequence[Path] = (),
        find_step: Callable[[], int],
    ) -> None:
        """arguments: of katgym, which every rank runs. folder: of the run.

        needs: files that every node has to see. find_step: returns that of the newest checkpoint.
        """
        self._config, self._arguments, self._find_step = config, list(arguments), find_step
        self._needs = [str(Path.cwd()), *(str(path.absolute()) for path in needs)]
        self._file = folder / "ranks.json"
        self._streams: list[Any] = [sys.stdout.buffer, sys.stderr.buffer]
        self._ranks: list[Rank] = []
        self._is_running = False
        self._num_restarts, self._error = 0, ""
        self._signals: list[int] = []
        self._hosts: Sequence[str] = ()
        self._main: asyncio.Task[Any] | None = None

    def run(self) -> int:
        """Return the exit code of the first rank, or of one that failed.

        Raises `InfrastructureError` where there is no place, or it was started again too often.
        """
        with connected(self._config.address):
            self._hosts = list_hosts()
            return asyncio.run(self._run())

    async def _run(self) -> int:
        self._main = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        failures, step = 0, self._find_step()
        try:
            async with keep_file(
                self._file, self._describe, address=self._config.address, hosts=self._hosts
            ):
                while True:
                    code, self._error = await self._run_once()
                    if code is not None:
                        return code
                    before, step = step, self._find_step()
                    failures = 1 if step > before else failures + 1
                    if failures > self._config.max_rank_restarts:
                        raise InfrastructureError(
                            f"{self._error}, and {failures - 1} starts after step {step} brought no"
                            " new checkpoint; look for the first rank's error above. The same"
                            " command goes on from there"
                        )
                    self._num_restarts += 1
                    logger.warning(
                        "%s: all ranks are started again, from step %d", self._error, step
                    )
                    await asyncio.sleep(_AGAIN_S * (failures - 1))
        except asyncio.CancelledError:
            if not self._signals:
                raise
            return 128 + self._signals[-1]  # there was no rank that could be told, or wanted to

    async def _run_once(self) -> tuple[int | None, str]:
        """Start the ranks and wait for their end; None if they are to be started again, and why."""
        count = self._config.trainer_ranks
        asked = {"CPU": self._config.cpus_per_rank, "GPU": float(self._config.gpus_per_rank)}
        bundle = {kind: num for kind, num in asked.items() if num} or {"CPU": 0.001}
        each = ", ".join(f"{num:g} {kind}" for kind, num in bundle.items())
        group = ray.util.placement_group([bundle] * count, strategy="PACK")
        actors: list[Any] = []
        try:

            async def wait() -> None:
                await group.ready()

            told = f"{count} trainer ranks wait for {each} each, all at once"
            patience_s = math.inf if self._num_restarts else self._config.patience_s
            await place(wait(), told, first_s=5.0, patience_s=patience_s)
            for number in range(count):
                scheduling = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=number
                )
                actors.append(
                    ray.remote(RankActor)
                    .options(
                        num_cpus=bundle.get("CPU", 0), num_gpus=self._config.gpus_per_rank,
                        scheduling_strategy=scheduling,
                    )
                    .remote()
                )  # fmt: skip
            await self._start(actors)
            return await self._follow()
        except ray.exceptions.RayTaskError:
            raise  # an actor's own, so a fault of ours
        except ray.exceptions.RayError as e:
            return None, f"ranks were lost as they started ({type(e).__name__})"
        finally:
            self._is_running = False
            await _end(actors)
            try:
                ray.util.remove_placement_group(group)
            except ray.exceptions.RayError as e:  # Ray removes it when this command has ended
                logger.warning("the head of the cluster does not answer: %s", e)

    async def _start(self, actors: Sequence[Any]) -> None:
        """Number the ranks, those of a node one after the other, and start their processes."""
        places = await asyncio.gather(*(actor.where.remote() for actor in actors))
        nodes = list(dict.fromkeys(found.node for found in places))
        placed = sorted(
            zip(actors, places, strict=True), key=lambda item: nodes.index(item[1].node)
        )
        ranks = [Rank(number=n, actor=a, place=found) for n, (a, found) in enumerate(placed)]
        pids = await asyncio.gather(
            *(
                rank.actor.start.remote(self._arguments, self._environ(rank, ranks), self._needs)
                for rank in ranks
            )
        )
        for rank, pid in zip(ranks, pids, strict=True):
            if isinstance(pid, str):
                raise UsageError(
                    f"node {rank.place.address} has no {pid!r}: the run's file and folder, and the"
                    " folder that the command is given in, lie where all nodes see them"
                )
            rank.pid = pid
        self._ranks, self._is_running = ranks, True

    def _environ(self, rank: Rank, ranks: Sequence[Rank]) -> dict[str, str]:
        """Return what a rank is told of its place, and of the command's environment."""
        near = [other for other in ranks if other.place.node == rank.place.node]
        own = without_settled(os.environ)
        return {
            **{name: value for name, value in own.items() if name.startswith(ENVIRON)},
            "CUDA_VISIBLE_DEVICES": ",".join(gpu for other in near for gpu in other.place.gpus),
            "RANK": str(rank.number),
            "WORLD_SIZE": str(len(ranks)),
            "LOCAL_RANK": str(near.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(near)),
            "MASTER_ADDR": ranks[0].place.address,
            "MASTER_PORT": str(ranks[0].place.port),
            NODE_ADDRESS: rank.place.address,
            JOINED: ray.get_runtime_context().gcs_address,
        }

    async def _follow(self) -> tuple[int | None, str]:
        """Pass on what ranks print until all have ended, or one has in a way that ends all."""
        following = {asyncio.create_task(self._follow_rank(rank)) for rank in self._ranks}
        try:
            while following:
                done, following = await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                failed = [rank for rank in self._ranks if rank.is_lost or rank.code]
                if any(_is_broken(rank) for rank in failed) and not self._signals:
                    return None, "; ".join(rank.tell_end() for rank in failed)
                if failed and following and not self._signals:
                    _, following = await asyncio.wait(following, timeout=_GRACE_S)
                    broken = [r for r in self._ranks if _is_broken(r) or r.code is None]
                    if broken:
                        return None, "; ".join(rank.tell_end() for rank in broken)
        finally:
            for task in following:
                task.cancel()
        codes = [CRASHED if rank.code is None else rank.code for rank in self._ranks]
        code = codes[0] or next(filter(None, codes), 0)
        if code == 2 and self._num_restarts:  # a rank that was lost may still hold the run's folder
            return None, self._ranks[0].tell_end()
        return 128 - code if code < 0 else code, ""

    async def _follow_rank(self, rank: Rank) -> None:
        while rank.code is None and not rank.is_lost:
            try:
                printed: Printed = await rank.actor.follow.remote()
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:
                rank.is_lost = True
                return
            for is_error, chunk in printed.chunks:
                self._print(rank, chunk, is_error=is_error)
            rank.code = printed.code
        for is_error, rest in rank.rests.items():
            self._print(rank, b"\n" if rest else b"", is_error=is_error)

    def _print(self, rank: Rank, chunk: bytes, *, is_error: bool) -> None:
        """Write the first rank's output as it is, and all others' lines with their number.

        Standard error is written in whole lines: it is of all.
        """
        stream = self._streams[is_error or rank.number > 0]
        if is_error or rank.number > 0:
            whole, end, rank.rests[is_error] = (rank.rests[is_error] + chunk).rpartition(b"\n")
            lines = (whole + end).splitlines(keepends=True)
            name = b"rank %d: " % rank.number if rank.number else b""
            chunk = b"".join(name + line for line in lines)
        stream.write(chunk)
        stream.flush()

    def _stop(self, number: int) -> None:
        """Pass a signal on: after the first one ranks end their step, after the second at once."""
        self._signals.append(number)
        if not self._is_running or len(self._signals) > 2:
            assert self._main is not None, "it runs"
            self._main.cancel()
            return
        for rank in self._ranks:
            if rank.code is None and not rank.is_lost:
                rank.actor.send_signal.remote(number)

    def _describe(self, is_over: bool) -> dict[str, Any] | None:
        """Return what `katgym cluster status` shows of the ranks; None: there is no run yet."""
        if not (self._file.parent / "lock.json").exists():
            return None
        return {
            "ranks": [
                {
                    "name": f"rank {r.number} (process {r.pid} on node {r.place.node})",
                    "is_up": r.code is None and not r.is_lost and not is_over,
                    "num_restarts": self._num_restarts,
                    "error": self._error if r.number == 0 else "",
                }
                for r in self._ranks
            ],
        }


def _is_broken(rank: Rank) -> bool:
    """Return whether it was ended from outside, or by what nobody foresaw."""
    return rank.is_lost or rank.code == CRASHED or (rank.code or 0) < 0 or (rank.code or 0) > 128


async def _end(actors: Sequence[Any]) -> None:
    """End processes and actors, also those that do not answer."""
    if not actors:
        return
    ending = [asyncio.ensure_future(actor.end.remote()) for actor in actors]
    await asyncio.wait(ending, timeout=_END_S)
    for task in ending:
        if not task.cancel():
            task.exception()  # of an actor that was lost: it is ended
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor)
