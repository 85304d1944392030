"""Syntax trees where CPython builds others at the same time."""

from __future__ import annotations

import ast
import gc
import traceback
from collections.abc import Iterator

import pytest

from katgym_envs.swe.parse_source import parse_source

SOURCE = "\n".join(f"x{i} = [({i}, {{'a': {i}}})]" for i in range(2_000))


@pytest.fixture
def formatted() -> Iterator[list[str]]:
    """Format a traceback in the first garbage collection from now on, as asyncio's logger does."""
    error = _raised()
    done: list[str] = []

    def format_once(phase: str, info: dict[str, int]) -> None:
        if not done:
            done.extend(traceback.format_exception(error))

    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(format_once)
    gc.set_threshold(500)
    yield done
    gc.set_threshold(*before)
    gc.callbacks.remove(format_once)


def _raised() -> ZeroDivisionError:
    def innermost() -> float:
        return 1.0 + 1 / 0

    try:
        innermost()
    except ZeroDivisionError as error:
        return error
    raise AssertionError


def test_a_traceback_formatted_by_the_garbage_collector_harms_no_parse(
    formatted: list[str],
) -> None:
    tree = parse_source(SOURCE)
    assert formatted
    assert ast.dump(tree) == ast.dump(ast.parse(SOURCE))


def test_errors_of_the_source_stay() -> None:
    with pytest.raises(SyntaxError):
        parse_source("x =")
