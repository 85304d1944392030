"""Functions and types that the tests here make tools of."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from katgym.environment.tool import Tool

Positive = Annotated[int, msgspec.Meta(ge=0)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


def search(self: Any, query: str, limit: int = 5, deep: bool = False) -> str:
    """Search the index,
    all of it.

    Long queries are cut.

    Args:
        query: What to look for:
            words, or a phrase.
        limit (int): How many.

    Returns:
        deep: not an argument's description.
    """
    return query


def plain(name: str = "f", parameters: dict[str, Any] | None = None, **fields: Any) -> Tool:
    parameters = {"type": "object"} if parameters is None else parameters
    return Tool(name=name, description="", parameters=parameters, fn=print, **fields)
