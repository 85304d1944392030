"""One daemon of a fleet: what it has room for, which layers it has, and whether it can be used.

Each daemon is asked every few seconds how it is. One that refuses, cannot be reached, or hangs is
left out, and its sandboxes are lost at once; it is asked on, and used again when it answers. Not
here: which daemon a sandbox is made on (`fleet.py`), the requests (`client.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from katgym.errors import UsageError
from katgym.sandbox.base import SandboxError, SandboxUnavailableError
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.client import RemoteBackend
from katgym.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)

_PROBE_EVERY_S = 2.0
_PROBE_TIMEOUT_S = 4.0
_END_TIMEOUT_S = 30.0
_MAX_SILENT = 2
"""Probes in a row without an answer, after which a daemon hangs: a busy one may miss one."""
_LEFT_OUT_S = (2.0, 60.0)
"""The first time between probes of a daemon that is left out, and the longest; they double."""
_COLD = 0.25
"""Share of its slots by which a daemon may be fuller than another that lacks the layers."""
T = TypeVar("T")


class Term:
    """A stretch of time in which a daemon is used: as one client of it, until it is lost."""

    def __init__(self, backend: RemoteBackend) -> None:
        self.backend = backend
        self.num_used = 0
        """Sandboxes that live or are being made."""
        self.lost = asyncio.Event()
        self.reason = ""
        """Why it was lost."""

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a request; `SandboxUnavailableError` as soon as the daemon is lost."""
        if self.lost.is_set():
            work.close()
            raise self._lost_error()
        running = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise self._lost_error()
            return running.result()
        finally:
            running.cancel()
            lost.cancel()

    def _lost_error(self) -> SandboxUnavailableError:
        return SandboxUnavailableError(
            f"the daemon of this sandbox was lost: {self.reason}; new ones are made elsewhere"
        )


class Daemon:
    """A daemon and its terms; belongs to one event loop."""

    def __init__(self, url: str, *, token: str | None, on_change: Callable[[], None]) -> None:
        """on_change: called whenever there may be more room or less. Raises `UsageError`."""
        self.url, self._token, self._on_change = url, token, on_change
        self._made = RemoteBackend(url, token=token)  # a wrong URL is told at once
        self._term: Term | None = None
        self.problem: str | None = None
        """Why it is left out."""
        self.was_probed = False
        self.was_usable = False
        self.is_retired = False
        """It is not in the list any more: it gets no new sandboxes."""
        self._max_sandboxes, self._num_others = 0, 0
        self._warm: set[str] = set()
        """Layers and images that it has."""
        self._num_silent = 0
        self._delay_s = _LEFT_OUT_S[0]
        self._past: list[Term] = []
        """Lost terms whose client the daemon has not been told to end."""
        self._should_probe = asyncio.Event()
        self._probing = asyncio.Lock()

    @property
    def term(self) -> Term:
        """The term of new sandboxes."""
        if self._term is None:
            self._term = Term(self._made)
        return self._term

    @property
    def is_usable(self) -> bool:
        """Whether it answered when it was asked last, and is to have new sandboxes."""
        return self.was_probed and self.problem is None and not self.is_retired

    @property
    def num_free(self) -> int:
        """Sandboxes that it has room for, by what it said last and was given since."""
        return self._max_sandboxes - self._num_others - self.term.num_used

    def cost(self, spec: SandboxSpec) -> float:
        """Return how full it is, and more if it lacks layers; the least is to be taken."""
        is_cold = not parts_of(spec) <= self._warm
        return 1 - self.num_free / max(1, self._max_sandboxes) + _COLD * is_cold

    def warm_up(self, spec: SandboxSpec) -> None:
        """Take note that it has what a sandbox was made from."""
        self._warm |= parts_of(spec)

    def fill(self) -> None:
        """Take note that it says it is full: others use it, too."""
        self._num_others = self._max_sandboxes - self.term.num_used

    def release(self, term: Term, num: int = 1) -> None:
        """Take note that sandboxes of a term are gone."""
        term.num_used -= num
        self._on_change()

    def suspect(self) -> None:
        """Have it asked soon: a request got no answer."""
        self._should_probe.set()

    def leave_out(self, reason: str) -> None:
        """Give it no sandboxes until it answers again; those that it has are lost."""
        if self.problem is None:
            logger.warning("left out: sandboxd at %s: %s", self.url, reason)
            if (term := self._term) is not None:
                term.reason = reason
                term.lost.set()
                self._past.append(term)
                self._term, self._made = None, RemoteBackend(self.url, token=self._token)
        self.was_probed, self.problem = True, reason
        self._on_change()

    async def watch(self) -> None:
        """Ask it how it is, until it is retired and has nothing left."""
        while not (self.is_retired and self.term.num_used == 0):
            async with self._probing:
                await self._probe()
            delay_s = _PROBE_EVERY_S
            if self.problem is not None:
                delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, _LEFT_OUT_S[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._should_probe.wait(), delay_s)
            self._should_probe.clear()
        await self.close()

    async def check(self) -> bool:
        """Return whether it answers, of which a request made doubt."""
        async with self._probing:
            if self.problem is None:
                await self._probe()
        return self.problem is None

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                found = await self.term.backend.ask("/status", wire.Status)
        except TimeoutError:
            self._num_silent += 1
            if self._num_silent >= _MAX_SILENT or not self.was_usable:
                self.leave_out(
                    f"no answer within {_PROBE_TIMEOUT_S:g} s, {self._num_silent} times in a row"
                )
            self._should_probe.set()
            return
        except (SandboxError, UsageError) as e:
            self.leave_out(str(e))
            return
        if self.problem is not None:
            logger.warning("used again: sandboxd at %s", self.url)
        self._max_sandboxes = found.max_sandboxes
        self._num_others = max(0, found.num_sandboxes - self.term.num_used)
        self.was_probed, self.was_usable, self.problem = True, True, None
        self._num_silent, self._delay_s = 0, _LEFT_OUT_S[0]
        self._on_change()
        past, self._past = self._past, []
        for term in past:  # what it may still have of ours is nobody's
            await term.backend.aclose(_END_TIMEOUT_S)

    async def close(self) -> None:
        """End everything of ours that it has; one that is left out is not waited for."""
        for term in [*self._past, *([self._term] if self._term else [])]:
            await term.backend.aclose(_PROBE_TIMEOUT_S if self.problem else None)
        self._past, self._term, self._made = [], None, RemoteBackend(self.url, token=self._token)
        self.was_probed = False


def parts_of(spec: SandboxSpec) -> set[str]:
    """Return what a machine has to have to make a sandbox quickly: layers and image."""
    return {layer.digest for layer in spec.layers} | ({spec.image} if spec.image else set())


def left_out_text(daemon: Daemon) -> str:
    """Return a daemon's URL and what is the matter with it."""
    return f"{daemon.url}: {daemon.problem or 'no answer yet'}"


def seconds_until(deadline: float) -> float:
    """Return the seconds until a monotonic time, at least 0."""
    return max(0.0, deadline - time.monotonic())
