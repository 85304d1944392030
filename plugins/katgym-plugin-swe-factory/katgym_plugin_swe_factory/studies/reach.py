"""Reach of tests: the functions each runs, so that a mutant is tried on few tests only.

Not here: recording what tests call (`recording.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from katgym_envs.swe.parse_source import parse_source
from katgym_plugin_swe_factory.studies.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Functions by test.

    Example:
        Reach(tests={("a.py", 3): ("t.py::test_x",)}, at_import=(("a.py", 9),),
              every_test=("t.py::test_x",))

    What it holds is sorted: a set on disk is the same, whoever makes it.
    """

    tests: Mapping[tuple[str, int], tuple[str, ...]]
    """(file, first line of a function) -> node ids of the tests that call it."""
    at_import: tuple[tuple[str, int], ...] = ()
    every_test: tuple[str, ...] = ()
    is_known: bool = True
    """False: nothing was recorded, so that a change may touch every test."""
    spans: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def tests_of(self, path: str, source: bytes, line: int) -> tuple[str, ...]:
        """Return the tests that a change on a line of a file can touch."""
        first = self.function_at(path, source, line)
        if not self.is_known or first is None or (path, first) in self.at_import:
            return self.every_test
        return self.tests.get((path, first), ())

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


def reach_of(recording: Recording, sound: Sequence[str]) -> Reach:
    """Return the reach of the tests in `sound`, which is sorted, from what all tests called."""
    tests: dict[tuple[str, int], list[str]] = {}
    for name in sound:
        for number in recording.tests.get(name, ()):
            tests.setdefault(recording.places[number], []).append(name)
    return Reach(
        tests={place: tuple(names) for place, names in tests.items()},
        at_import=tuple(recording.places[n] for n in recording.tests.get("", ())),
        every_test=tuple(sound),
    )
