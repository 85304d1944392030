"""A plugin for pytest that records what tests call; it is sent into a sandbox as text.

Standard library and pytest only, Python >= 3.8. For every test it writes the functions of the
workspace that it calls, and what it asks of a clock or of chance: how fast the machine is, or a
draw, may decide such a test. Not here: who runs it and reads what it wrote (`recording.py`).
"""

# ruff: noqa: PTH109, PTH120, PTH123
# (pathlib would cost each run an import in sandboxes that have not loaded it)

from __future__ import annotations

import datetime
import json
import os
import random
import sys
import threading
import types

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

_ROOT = os.getcwd() + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_CLOCKS = frozenset(
    f"time.{name}"
    for kind in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for name in (kind, kind + "_ns")
) | {
    "time.clock_gettime", "time.clock_gettime_ns", "time.sleep", "signal.alarm",
    "signal.setitimer", "posix.urandom", "posix.getrandom",
}  # fmt: skip
_TODAY = frozenset({"now", "utcnow", "today"})
_DRAWS = frozenset({"random", "getrandbits"})
_NAMES = frozenset(name.partition(".")[2] for name in _CLOCKS) | _TODAY | _DRAWS
_HARMLESS = ("logging", "tempfile.py", "asyncio")
"""Modules that ask a clock or chance for what no result depends on."""
_WAITS = {
    ("threading.py", "wait"): "timeout",
    ("threading.py", "wait_for"): "timeout",
    ("threading.py", "join"): "timeout",
    ("asyncio/base_events.py", "call_at"): "when",
}
"""Functions that wait for a time -> the argument that is None if they do not."""
_EVERY = ""


class Recorder:
    """What was recorded so far."""

    def __init__(self) -> None:
        self.reached: dict[str, set[tuple[str, int]]] = {_EVERY: set()}
        """Test, or `_EVERY` for what importing calls -> file and first line of functions."""
        self.uncertain: dict[str, str] = {}
        """Test -> what it asks of a clock or of chance."""
        self.known: dict[int, tuple[tuple[str, Any] | None, Any]] = {}
        """By the id of a code object, which is kept alive."""
        self.test = _EVERY
        self.is_seeded = False

    def start(self) -> None:
        """Record the calls of this thread and of those that start from now on."""
        threading.setprofile(self.of_thread)
        sys.setprofile(self.of_test)

    def begin(self, test: str) -> None:
        """Record for a test."""
        self.test = test
        self.is_seeded = False
        self.reached.setdefault(test, set())
        self.start()

    def of_test(self, frame: Any, event: str, argument: Any) -> None:
        """Take in a call."""
        self.take(frame, event, argument, self.test)

    def of_thread(self, frame: Any, event: str, argument: Any) -> None:
        """Take in a call of another thread: which test runs meanwhile depends on speed."""
        self.take(frame, event, argument, _EVERY)

    def take(self, frame: Any, event: str, argument: Any, test: str) -> None:
        """Take in a call."""
        if event == "call":
            code = frame.f_code
            entry = self.known.get(id(code))
            if entry is None:
                entry = self.known[id(code)] = _kind_of(code), code
            if entry[0] is not None:
                kind, value = entry[0]
                if kind == "own":
                    self.reached[test].add(value)
                elif kind == "seed":
                    self.on_seed(frame)
                elif frame.f_locals.get(value) is not None:
                    self.doubt(frame, "a wait for a time")
        elif event == "c_call" and argument.__name__ in _NAMES:
            self.on_builtin(frame, argument)

    def on_seed(self, frame: Any) -> None:
        """Take in a call of `random.Random.seed`."""
        if frame.f_locals.get("a") is None:
            self.doubt(frame, "a generator without a seed")
        elif frame.f_locals.get("self") is random._inst:
            self.is_seeded = True

    def on_builtin(self, frame: Any, function: Any) -> None:
        """Take in a call of a built-in function with one of `_NAMES`."""
        owner, name = function.__self__, function.__name__
        if isinstance(owner, types.ModuleType):
            told = f"{owner.__name__.lstrip('_')}.{name}"
            if told in _CLOCKS:
                self.doubt(frame, told)
        elif isinstance(owner, type):
            if name in _TODAY and issubclass(owner, datetime.date):
                self.doubt(frame, f"datetime.{owner.__name__}.{name}")
        elif owner is random._inst and name in _DRAWS and not self.is_seeded:
            self.doubt(frame, "the random module without a seed")

    def doubt(self, frame: Any, what: str) -> None:
        """Note that a result may depend on something, unless pytest asks, or a harmless module."""
        asking = frame
        while asking is not None:
            path = asking.f_code.co_filename
            if path.startswith(_LIBRARY) and "site-packages" not in path:
                if path[len(_LIBRARY) :].startswith(_HARMLESS) and what != "a wait for a time":
                    return
            elif not path.startswith("<frozen"):
                break
            asking = asking.f_back
        if asking is None or not _is_of_pytest(asking.f_code.co_filename):
            self.uncertain.setdefault(self.test, what)

    def write(self) -> None:
        """Stop, and write what was recorded."""
        sys.setprofile(None)
        places = sorted(set().union(*self.reached.values()))
        numbers = {place: i for i, place in enumerate(places)}
        tests = {name: sorted(numbers[p] for p in found) for name, found in self.reached.items()}
        told = {"places": places, "tests": tests, "uncertain": self.uncertain}
        with open(_ROOT + "katgym_recorded.json", "w") as file:
            json.dump(told, file)


def _kind_of(code: Any) -> tuple[str, Any] | None:
    """Return what a function is to the recorder, with what belongs to that."""
    path = code.co_filename
    if path.startswith(_ROOT):
        return "own", (path[len(_ROOT) :], code.co_firstlineno)
    if code is random.Random.seed.__code__:
        return "seed", None
    if path.startswith(_LIBRARY):
        argument = _WAITS.get((path[len(_LIBRARY) :], code.co_name))
        return None if argument is None else ("wait", argument)
    return None


def _is_of_pytest(path: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in path for name in ("_pytest", "pluggy"))


_recorder = Recorder()
_recorder.start()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> Generator[None, None, None]:
    """Record for one test."""
    _recorder.begin(item.nodeid)
    yield
    _recorder.test = _EVERY


def pytest_unconfigure(config: Any) -> None:
    """Write what was recorded."""
    _recorder.write()
