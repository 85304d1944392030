"""The processes that train one model together, and what they tell each other.

    with Ranks.join() as ranks:  # under torchrun; alone without it
        trainer = Trainer("Qwen/Qwen3-8B", "sft", ranks=ranks)
        trainer.step_rows(rows)  # every rank is given the same rows, and computes its share

Every rank calls the same things in the same order. Imports torch alone, as the learner's core does,
and psutil where ranks meet.
Not here: how the model lies on them (`sharded_model.py`), who computes which rows (`shares.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from katgym_trainer.ranks import TIMEOUT_S

T = TypeVar("T")
MEETING_S = 300.0
"""How long ranks wait at first for who imports and starts more slowly, at least."""


class RanksError(RuntimeError):
    """Another rank is gone or hangs; the same command goes on from the last checkpoint."""


class Ranks:
    """One process's place among them.

    Example:
        Ranks()  # alone
    """

    def __init__(
        self,
        number: int = 0,
        num: int = 1,
        *,
        timeout_s: float = TIMEOUT_S,
        group: Any = None,
        mesh: DeviceMesh | None = None,
        store: Any = None,
    ) -> None:
        """number: this process's, from 0. group: for objects, on CPUs. mesh: for tensors.

        store: of torch.distributed, where those who still answer say so when one does not.
        """
        self.number, self.num, self.mesh, self.group = number, num, mesh, group
        self.timeout_s, self._store = timeout_s, store

    @classmethod
    def join(cls, *, timeout_s: float = TIMEOUT_S) -> Ranks:
        """Meet the others that torchrun or Ray started; alone where none were.

        timeout_s: after which a rank that does not answer is taken for hung, once all have met, for
            which they have `MEETING_S`. Each process takes the GPU of its LOCAL_RANK, or the CPU
            where there is none, and the network interface with its machine's address: it sets
            GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, unless they are set.

        Raises `RanksError` where they do not meet, with addresses and interfaces.
        """
        if (num := num_started()) == 1:
            return cls()
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend, timeout = "cpu:gloo,cuda:nccl" if has_gpu else "gloo", timedelta(seconds=timeout_s)
        from katgym_trainer.ranks import network  # one process goes without psutil

        where = ""
        try:
            where = f" at {network.tell_first_rank()}"
            meeting = max(timeout, timedelta(seconds=MEETING_S))
            store, number, _ = next(rendezvous("env://", timeout=meeting))
            own = PrefixStore("katgym", store)
            network.meet(own, number, num, meeting)
            dist.init_process_group(
                backend, store=store, rank=number, world_size=num, timeout=timeout
            )
        except (ValueError, RuntimeError) as e:
            starter = "Ray" if network.NODE_ADDRESS in os.environ else "torchrun"
            told = f"{starter} started {num} ranks, which cannot meet{where}: {str(e).rstrip('.')}"
            if where and not isinstance(e, network.MeetingError):  # torch knows no interfaces
                told += f". {network.advise([network.find_place(int(os.environ.get('RANK', 0)))])}"
            raise RanksError(told) from e
        group = dist.new_group(backend="gloo", timeout=timeout)
        mesh = init_device_mesh("cuda" if has_gpu else "cpu", (num,))
        return cls(number, num, timeout_s=timeout_s, group=group, mesh=mesh, store=own)

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes what is written once."""
        return self.number == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by their numbers; values are pickled."""
        found: list[Any] = [value]
        if self.num > 1:
            found = [None] * self.num
            dist.all_gather_object(found, value, group=self.group)
        return found

    def share_first(self, value: T) -> T:
        """Return what the first rank gave."""
        found: list[Any] = [value if self.is_first else None]
        if self.num > 1:
            dist.broadcast_object_list(found, src=0, group=self.group)
        result: T = found[0]
        return result

    def any(self, value: bool) -> bool:
        """Return whether it is true on some rank."""
        return any(self.gather(value))

    def sum(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the sums over ranks, of all names that some rank has."""
        everywhere = self.gather(numbers)
        names = dict.fromkeys(name for found in everywhere for name in found)
        return {name: sum(found.get(name, 0) for found in everywhere) for name in names}

    def check_same(self, value: object, what: str) -> None:
        """Raise `ValueError` on all ranks unless every one gives an equal value."""
        first, *others = self.gather(value)
        for number, other in enumerate(others, 1):
            if other != first:
                raise ValueError(
                    f"rank {number} has other {what} than rank 0 ({other!r}); every rank is given"
                    " the same"
                )

    def together(self, function: Callable[[], T]) -> T:
        """Return what a function does on this rank; raise on all ranks what it raised on one.

        For what may fail on one rank alone, such as writing a file: others would wait for it.
        """
        problem: Exception | None = None
        try:
            found = function()
        except Exception as e:
            if self.num == 1:
                raise
            problem = e
        told = f"{type(problem).__name__}: {problem}" if problem is not None else None
        for number, text in enumerate(self.gather(told)):
            if text is not None and problem is None:
                raise RanksError(f"rank {number} failed: {text}")
        if problem is not None:
            raise problem
        return found

    def on_first(self, function: Callable[[], T]) -> T:
        """Return what a function returns on the first rank, which alone calls it."""
        found: Any = self.together(lambda: function() if self.is_first else None)
        result: T = self.share_first(found)
        return result

    def has_lost(self, error: BaseException) -> bool:
        """Return whether an error comes of a rank that died or does not answer."""
        is_known = isinstance(error, dist.DistError) or any(sign in str(error) for sign in _SIGNS)
        return self.num > 1 and isinstance(error, RuntimeError) and is_known

    def explain(self, error: BaseException) -> RanksError | None:
        """Return an error that others caused as one that says what to do; None for another."""
        if not self.has_lost(error):
            return None
        text = str(error)
        silent = ", ".join(map(str, self.find_silent()))
        who = f"rank {silent}" if silent else "another rank"
        return RanksError(
            f"rank {self.number} of {self.num}: {who} died or does not answer within"
            f" {self.timeout_s:g} s ({text[:200]}); look for its error above. The same command goes"
            " on from the last checkpoint"
        )

    def find_silent(self) -> list[int]:
        """Return the ranks that do not say within some seconds that they lost one, too."""
        if self._store is None:
            return []
        silent = [number for number in range(self.num) if number != self.number]
        until = time.monotonic() + _CHECK_IN_S
        try:
            self._store.set(str(self.number), "lost one")
            while silent and time.monotonic() < until:
                time.sleep(0.1)
                silent = [number for number in silent if not self._store.check([str(number)])]
        except RuntimeError:  # the process that kept it is gone
            return []
        return silent

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.num == 1:
            return
        if error is None:
            dist.destroy_process_group()
            return
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self.has_lost(error):  # torchrun ends all, once it sees one end
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if (told := self.explain(error)) is not None:
            raise told from error


def num_started() -> int:
    """Return how many processes torchrun started, this one among them; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_started() -> bool:
    """Return whether this process is one of them, or a gang's only one."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first_started() -> bool:
    """Return whether this process is the one of them that prints."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def explain_lost_ranks() -> Iterator[None]:
    """Tell errors of ranks as errors of the machines, for commands."""
    from katgym.errors import InfrastructureError  # the learner's core goes without katgym

    try:
        yield
    except RanksError as e:
        raise InfrastructureError(str(e)) from e


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may lie on all ranks, whole; every rank calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


_CHECK_IN_S = 10.0
"""Ranks that wait for one that hangs began to wait within about this time of each other."""
_SIGNS = ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Timed out waiting")
"""In the texts of torch.distributed's errors of every backend."""

ALONE = Ranks()
