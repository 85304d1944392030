"""Calls that the first rank makes whenever it wants to, and all others with it.

    lead = Lead(ranks, trainer=trainer)
    with lead.leading():                # on the first rank, which plays meanwhile
        led = lead.proxy("trainer", trainer, "step_rows", "save_checkpoint")
        led.step_rows(rows)             # the others are told, with the arguments, and do the same
    lead.follow()                       # on the others, until the first one ends it

Arguments are pickled; whoever may start processes here may send them. Not here: what every rank
does by itself in the same order (`ranks.py`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from katgym_trainer.ranks.ranks import Ranks, RanksError

T = TypeVar("T")

_NOTHING: tuple[Any, ...] = ("", "", (), {})
"""Told by a first rank that has nothing to do for long: it is still there."""


class Lead:
    """What the ranks do together while the first one decides; not for two at once."""

    def __init__(self, ranks: Ranks, **targets: object) -> None:
        """targets: by the names that all ranks give them."""
        self.ranks, self.targets = ranks, targets
        self._lock = threading.RLock()
        self._is_leading = False

    def proxy(self, name: str, target: T, *methods: str) -> T:
        """Return a target whose methods of these names are called on all ranks; alone itself.

        While nobody leads it is the target, which every rank calls by itself.
        """
        return target if self.ranks.num == 1 else cast(T, _Led(self, name, frozenset(methods)))

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Have the others follow until the end of the block, and tell them whether it failed."""
        self._is_leading, reason = self.ranks.num > 1, ""
        try:
            yield
        except BaseException as e:
            reason = f"{type(e).__name__}: {e}"
            if self.ranks.has_lost(e):  # nobody would hear
                self._is_leading = False
            raise
        finally:
            if self._is_leading:
                self._is_leading = False
                # After a failure of its own they may have failed as well.
                with contextlib.suppress(RuntimeError) if reason else contextlib.nullcontext():
                    self.ranks.share_first(reason)
                    self.ranks.gather(None)  # a rank that died meanwhile is noticed

    def beat(self) -> None:
        """Tell the others, who wait, that the first one is still there."""
        with self._lock:
            if self._is_leading:
                self.ranks.share_first(_NOTHING)

    def follow(self) -> None:
        """Make the first rank's calls until it ends them; raise `RanksError` where it failed."""
        while not isinstance(told := self.ranks.share_first(None), str):
            name, method, args, options = cast(Any, told)
            found = getattr(self.targets[name], method)(*args, **options) if name else None
            if inspect.isgenerator(found):
                deque(found, maxlen=0)
        self.ranks.gather(None)
        if told:
            raise RanksError(f"rank 0 failed: {told}")

    def call(self, name: str, method: str, *args: Any, **options: Any) -> Any:
        """Call a target's method on all ranks; return what the first one's returns."""
        function = getattr(self.targets[name], method)
        if inspect.isgeneratorfunction(inspect.unwrap(function)):
            return self.stream(name, method, *args, **options)
        with self._telling(name, method, args, options):
            return function(*args, **options)

    def stream(self, name: str, method: str, *args: Any, **options: Any) -> Iterator[Any]:
        """Yield what a target's method yields on all ranks, who go on with each together."""
        with self._telling(name, method, args, options):
            found = getattr(self.targets[name], method)(*args, **options)
            try:
                yield from found
            finally:  # the others do not know that somebody here had enough
                deque(found, maxlen=0)

    @contextlib.contextmanager
    def _telling(self, *told: Any) -> Iterator[None]:
        with self._lock:
            if self._is_leading:
                self.ranks.share_first(told)
            yield


class _Led:
    """See `Lead.proxy`."""

    def __init__(self, lead: Lead, name: str, methods: frozenset[str]) -> None:
        self._lead, self._name, self._methods = lead, name, methods

    def __getattr__(self, attribute: str) -> Any:
        if attribute in self._methods:
            return functools.partial(self._lead.call, self._name, attribute)
        return getattr(self._lead.targets[self._name], attribute)
