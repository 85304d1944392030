"""Reach of tests: the functions each runs, so that a mutant is tried on few tests only.

A plugin for pytest (`PLUGIN`, put into the workspace for one run) records the functions every test
calls, and those that importing calls. Not here: running it (`package_study.py`).

It misses what a test runs in another process.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym_envs.swe.parse_source import parse_source

PLUGIN_NAME = "katgym_reach_recorder"
PLUGIN_PATH = f"{PLUGIN_NAME}.py"
RESULT_PATH = "katgym_reach_result.json"
PLUGIN = f"""
import json, os, sys, threading
import pytest

ROOT = os.getcwd() + os.sep
known = {{}}
reached = {{"": set()}}
current = reached[""]

def profile(frame, event, argument):
    if event == "call":
        code = frame.f_code
        entry = known.get(id(code))
        if entry is None:
            name = code.co_filename
            key = None
            if name.startswith(ROOT):
                key = (name[len(ROOT):], code.co_firstlineno)
            known[id(code)] = entry = (key, code)
        if entry[0] is not None:
            current.add(entry[0])

def start():
    threading.setprofile(profile)
    sys.setprofile(profile)

start()

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    global current
    current = reached.setdefault(item.nodeid, set())
    start()
    yield
    current = reached[""]

def pytest_unconfigure(config):
    sys.setprofile(None)
    places = sorted(set().union(*reached.values()))
    numbers = {{place: i for i, place in enumerate(places)}}
    tests = {{name: sorted(numbers[p] for p in found) for name, found in reached.items()}}
    with open(ROOT + {RESULT_PATH!r}, "w") as file:
        json.dump({{"places": places, "tests": tests}}, file)
"""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Functions by test.

    Example:
        Reach(tests={("a.py", 3): frozenset({"t.py::test_x"})}, at_import=frozenset({("a.py", 9)}),
              every_test=frozenset({"t.py::test_x"}))
    """

    tests: Mapping[tuple[str, int], frozenset[str]]
    """(file, first line of a function) -> node ids of the tests that call it."""
    at_import: frozenset[tuple[str, int]] = frozenset()
    every_test: frozenset[str] = frozenset()
    is_known: bool = True
    """False: nothing was recorded, so that a change may touch every test."""
    spans: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def tests_of(self, path: str, source: bytes, line: int) -> frozenset[str]:
        """Return the tests that a change on a line of a file can touch."""
        first = self.function_at(path, source, line)
        if not self.is_known or first is None or (path, first) in self.at_import:
            return self.every_test
        return self.tests.get((path, first), frozenset())

    def function_at(self, path: str, source: bytes, line: int) -> int | None:
        """Return the first line of the innermost function whose body holds a line."""
        if path not in self.spans:
            found = []
            for node in ast.walk(parse_source(source)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    found.append((first, node.body[0].lineno, node.end_lineno or node.lineno))
            self.spans[path] = found
        holding = [span for span in self.spans[path] if span[1] <= line <= span[2]]
        return max(holding, key=lambda span: span[1])[0] if holding else None


def read_reach(data: bytes, sound: frozenset[str]) -> Reach:
    """Return what the plugin wrote, for the tests in `sound`."""
    told = json.loads(data)
    places = [(path, line) for path, line in told["places"]]
    tests: dict[tuple[str, int], set[str]] = {}
    for name, numbers in told["tests"].items():
        if name in sound:
            for number in numbers:
                tests.setdefault(places[number], set()).add(name)
    return Reach(
        tests={place: frozenset(names) for place, names in tests.items()},
        at_import=frozenset(places[number] for number in told["tests"].get("", ())),
        every_test=sound,
    )
