"""ScienceWorld's simulator: one Java process, in which each episode has a world of its own.

Not here: the env (`env.py`).
"""

from __future__ import annotations

import atexit
import shutil
import threading
from functools import cache, lru_cache
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from scienceworld.constants import BASEPATH, JAR_PATH

from katgym.errors import MissingDependencyError

_lock = threading.RLock()
"""Calls are made one after the other: the simulator is not written for several at a time."""


@cache
def _start() -> JavaGateway:
    if shutil.which("java") is None:
        raise MissingDependencyError(
            "ScienceWorld's simulator needs Java: apt install default-jre-headless"
        )
    # What lies in a place is kept by identity; equal hashes keep it in the order of its making.
    options = ["-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"]
    # A third of the memory, and no slower for episodes of seconds.
    options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    port, token = launch_gateway(
        classpath=JAR_PATH, cwd=BASEPATH, javaopts=options, die_on_exit=True, enable_auth=True
    )
    address = GatewayParameters(port=port, auth_token=token, auto_field=True)
    gateway = JavaGateway(gateway_parameters=address)
    atexit.register(gateway.shutdown)
    return gateway


def _new_world() -> Any:
    with _lock:
        return _start().jvm.scienceworld.runtime.pythonapi.PythonInterface()


@lru_cache(maxsize=1024)
def gold_path(task: str, variation: int) -> tuple[str, ...]:
    """Return upstream's solution: the simulator tries it out, 1 to 25 s of CPU."""
    world = _new_world()
    with _lock:
        world.load(task, variation, "", True)
        return tuple(str(command) for command in world.getGoldActionSequence())


class World:
    """One episode's world; a copy of it is played again up to the same command."""

    def __init__(self, task: str, variation: int) -> None:
        self.arguments = (task, variation)
        self.commands: list[str] = []
        self._world = _new_world()
        with _lock:
            self._world.load(task, variation, "", False)
            self._world.reset()
            self.description = str(self._world.getTaskDescription())

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        copy = World(*self.arguments)
        for command in self.commands:
            copy.step(command)
        return copy

    def step(self, command: str) -> str:
        """Give a command and return what is told."""
        self.commands.append(command)
        with _lock:
            return str(self._world.step(command))

    def look(self) -> str:
        """Return what is seen, which takes no time."""
        with _lock:
            return str(self._world.freeActionLook())

    def score(self) -> float:
        """Return the score so far, 0 to 1; below 0 the task was failed."""
        with _lock:
            return float(self._world.getScore())

    def is_over(self) -> bool:
        with _lock:
            return bool(self._world.getCompleted()) or self.score() < 0

    def valid_commands(self) -> list[str]:
        """Return every command that does something here."""
        with _lock:
            return sorted(str(c) for c in self._world.getValidActionObjectCombinations())
