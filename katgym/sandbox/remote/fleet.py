"""Backend `sandboxd:URL,URL,...` or `sandboxd:@FILE`: the sandboxes of many machines as one.

A sandbox is made on the daemon that is least full, one that has its layers first; where making it
fails, on another. All daemons have the same token. A file names a URL a line, `#` begins a comment;
it is read again when it changes: new daemons are used, one that is gone keeps the sandboxes that it
has until they end. Not here: one daemon (`daemon.py`), its requests (`client.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from katgym.errors import UsageError
from katgym.sandbox.base import Enforcement, SandboxError, SandboxUnavailableError
from katgym.sandbox.operations import Link, Operation
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.client import RemoteBackend
from katgym.sandbox.remote.daemon import Daemon, Term, left_out_text, parts_of, seconds_until
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)

_MAX_WAIT_S = 300.0
"""For room on a daemon that can be used."""
_MAX_OUTAGE_S = 20.0
"""For a daemon of a fleet that could be used before and of which all are left out."""
_REREAD_EVERY_S = 1.0
T = TypeVar("T")


def connect(places: str = "", *, token: str | None = None) -> SandboxBackend:
    """Return the backend of one daemon by its URL, or of a fleet; see `RemoteBackend`."""
    if "," in places or places.startswith("@"):
        return FleetBackend(places, token=token)
    return RemoteBackend(places, token=token)


class FleetBackend(SandboxBackend):
    """Makes sandboxes on many daemons; bound to the event loop that uses it first."""

    name = "sandboxd"

    def __init__(self, places: str, *, token: str | None = None) -> None:
        """Prepare; nothing is asked before the first use. token: that of every daemon.

        places: URLs with commas between them, or `@` and the path of a file with a URL a line.
        Raises `UsageError`.
        """
        self._places, self._token = places, token
        self._file = Path(places[1:]) if places.startswith("@") else None
        self._changed = asyncio.Event()
        self._seen: tuple[int, ...] = ()
        """What the file was when it was read last."""
        self._looked_s = 0.0
        self._daemons: list[Daemon] = []
        self._watches: dict[Daemon, asyncio.Task[None]] = {}
        self._enforcement: Enforcement | None = None
        self._take(self._read() if self._file else places.split(","))

    async def create(self, spec: SandboxSpec) -> Sandbox:
        began = time.monotonic()
        failed: dict[Daemon, SandboxError] = {}
        while True:
            daemon = await self._place(spec, failed, began)
            term = daemon.term
            term.num_used += 1
            try:
                made = await term.run(term.backend.create(spec))
            except wire.FullError:
                daemon.release(term)
                daemon.fill()
            except SandboxUnavailableError as e:
                daemon.release(term)
                if await daemon.check():  # it is there, and cannot make this one
                    failed[daemon] = e
            except SandboxError as e:
                daemon.release(term)
                failed[daemon] = e
                logger.warning("made elsewhere: sandboxd at %s: %s", daemon.url, e)
            except BaseException:
                daemon.release(term)
                raise
            else:
                daemon.warm_up(spec)
                return Sandbox(FleetLink(daemon, term, made.link), self)

    async def enforcement(self) -> Enforcement:
        """Return what every daemon that can be used enforces: the weakest of each."""
        if self._enforcement is None:
            await self._place(SandboxSpec(), {}, time.monotonic(), is_whole=True)
            usable = [daemon for daemon in self._daemons if daemon.is_usable]
            found = [await daemon.term.run(daemon.term.backend.enforcement()) for daemon in usable]
            first, *others = found
            names = set(first.limits).intersection(*(other.limits for other in others))
            self._enforcement = Enforcement(
                backend=self.name,
                level=", ".join(dict.fromkeys(each.level for each in found)),
                is_safe=all(each.is_safe for each in found),
                limits={name: how for name, how in first.limits.items() if name in names},
                capabilities=first.capabilities.intersection(*(o.capabilities for o in others)),
                probes=first.probes,
                notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
            )
        return self._enforcement

    async def gc(self) -> int:
        await self._place(SandboxSpec(), {}, time.monotonic(), is_whole=True)
        usable = [daemon for daemon in self._daemons if daemon.is_usable]
        return sum([await daemon.term.backend.gc() for daemon in usable])

    async def aclose(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.cancel()
        await asyncio.gather(*watches.values(), return_exceptions=True)
        await asyncio.gather(*(daemon.close() for daemon in watches))

    def provenance(self) -> Mapping[str, Any]:
        level = None if self._enforcement is None else self._enforcement.level
        urls = [daemon.url for daemon in self._daemons if not daemon.is_retired]
        return {"backend": self.name, "url": ",".join(urls), "level": level}

    async def _place(
        self,
        spec: SandboxSpec,
        failed: Mapping[Daemon, SandboxError],
        began: float,
        *,
        is_whole: bool = False,
    ) -> Daemon:
        """Return the daemon to make a sandbox on; waits for room, and for daemons to be back.

        failed: those on which making this one failed. is_whole: it is for all daemons, of which
        none is waited for but for its first answer.
        """
        while True:
            self._look()
            usable = [each for each in self._daemons if each.is_usable and each not in failed]
            free = [each for each in usable if each.num_free > 0 or is_whole]
            if free and not (is_whole and any(not each.was_probed for each in self._daemons)):
                # Sandboxes of other layers begin on other daemons, whoever asks.
                key = ",".join(sorted(parts_of(spec)))
                return min(free, key=lambda d: (d.cost(spec), _hash(key + d.url)))
            listed = [daemon for daemon in self._daemons if not daemon.is_retired]
            max_s = _MAX_WAIT_S
            if not usable:
                if failed and any(daemon.is_usable for daemon in listed):
                    raise list(failed.values())[-1]
                is_begun = any(d.was_usable or not d.was_probed for d in listed)
                max_s = _MAX_OUTAGE_S if is_begun else 0.0
            left_s = seconds_until(began + max_s)
            if left_s == 0 and usable:
                raise SandboxError(
                    f"no sandboxd of {self._places!r} had room within {max_s:g} s; close some, add"
                    " daemons, or start them with a larger --max-sandboxes"
                )
            if left_s == 0:
                told = "; ".join(map(left_out_text, listed))
                raise SandboxUnavailableError(
                    f"no sandboxd of {self._places!r} can be used: {told}"
                )
            try:
                await asyncio.wait_for(self._changed.wait(), min(left_s, _REREAD_EVERY_S))
            except TimeoutError:
                continue

    def _tell(self) -> None:
        """Wake those who wait for room."""
        self._changed.set()
        self._changed.clear()

    def _look(self) -> None:
        """Read the file again if it has changed, and have every daemon watched."""
        now_s = time.monotonic()
        if self._file is not None and now_s - self._looked_s >= _REREAD_EVERY_S:
            self._looked_s = now_s
            before = self._seen
            try:
                urls = self._read()
                if self._seen != before:
                    self._take(urls)
            except UsageError as e:
                if self._seen != before:
                    logger.warning("the fleet stays as it is: %s", e)
        for daemon, watch in list(self._watches.items()):
            if watch.done():  # it was retired, and everything of it has ended
                del self._watches[daemon]
                self._daemons = [each for each in self._daemons if each is not daemon]
        for daemon in self._daemons:
            if daemon not in self._watches:
                self._watches[daemon] = asyncio.create_task(daemon.watch())

    def _read(self) -> list[str]:
        """Return the URLs in the file."""
        assert self._file is not None
        try:
            info = self._file.stat()
            seen = (info.st_mtime_ns, info.st_size, info.st_ino)
            text = self._file.read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            self._seen = ()
            raise UsageError(
                f"the list of daemons {str(self._file)!r} cannot be read: {e}. It has a URL such as"
                " http://10.0.0.7:8765 on every line"
            ) from e
        self._seen = seen
        return [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]

    def _take(self, urls: Sequence[str]) -> None:
        """Make these the daemons of the fleet; `UsageError` for what is no list of them."""
        cleaned = [url.strip().rstrip("/") for url in urls]
        for url in cleaned:
            if cleaned.count(url) > 1:
                raise UsageError(f"{self._places!r} names sandboxd {url!r} twice; once is enough")
        if not cleaned:
            raise UsageError(
                f"{self._places!r} names no sandboxd; write a URL such as http://10.0.0.7:8765 on"
                " every line"
            )
        known = {daemon.url: daemon for daemon in self._daemons}
        made = {
            url: Daemon(url, token=self._token, on_change=self._tell)
            for url in cleaned
            if url not in known
        }
        for daemon in self._daemons:
            daemon.is_retired = daemon.url not in cleaned
            daemon.suspect()
        self._daemons += made.values()
        self._tell()


class FleetLink(Link):
    """The link to a sandbox on a daemon of a fleet; an error at once when the daemon is lost."""

    def __init__(self, daemon: Daemon, term: Term, inner: Link) -> None:
        self.id, self.spec = inner.id, inner.spec
        self._daemon, self._term, self._inner = daemon, term, inner
        self._is_killed = False

    async def request(self, operation: Operation[T]) -> T:
        try:
            return await self._term.run(self._inner.request(operation))
        except SandboxUnavailableError:
            self._daemon.suspect()
            raise

    async def fork(self, num: int, at: str | None) -> Sequence[Link]:
        self._term.num_used += num
        try:
            made = await self._term.run(self._inner.fork(num, at))
        except BaseException:
            self._daemon.release(self._term, num)
            raise
        return [FleetLink(self._daemon, self._term, link) for link in made]

    async def kill(self) -> None:
        if self._is_killed:
            return
        self._is_killed = True
        try:
            await self._term.run(self._inner.kill())
        except SandboxUnavailableError:  # a lost daemon ends all of ours when it is back
            logger.debug("sandbox %s was on a daemon that is lost", self.id)
        finally:
            self._daemon.release(self._term)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
