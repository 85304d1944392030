"""The base class of task families: parameters, a prompt, a solution, a script of play."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np

from katgym_plugin_web.judging import Script

Parameters = dict[str, Any]
"""JSON values that make a task."""
RULES = """
Rules for the page: one HTML file with its CSS and JavaScript inline. No network, frames, workers, \
dialogs or eval. No error in the console. `body` has no margin; the picture is at the top left of \
the page and everything else below it. Shapes are filled plainly in exactly the colours named. \
Measure time with `Date` where the time of day is asked for, else with `performance.now()` (not \
with an event's timeStamp); draw with requestAnimationFrame. \
A global function `state()` returns a plain object that says what the page shows at that moment. \
It is tested by clicks and keys at moments and with values that you are not told, by what \
`state()` returns, by its texts as screen readers hear them, and by its pixels."""
COLOURS = (
    *("#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf"),
    *("#bcbd22", "#393b79"),
)
BACKGROUNDS = ("#ffffff", "#fff8e7", "#eef2f7", "#f3f0ff", "#e9f7ef")


class Family(abc.ABC):
    """Tasks of one kind, which differ in their parameters."""

    name: ClassVar[str]

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator) -> Parameters:
        """Draw a task."""

    @abc.abstractmethod
    def prompt(self, p: Parameters) -> str:
        """Return what the page has to be, without the rules of all pages."""

    @abc.abstractmethod
    def solution(self, p: Parameters) -> str:
        """Return a page that passes."""

    @abc.abstractmethod
    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        """Return a play of the page: other moments and values with each state of `rng`."""


def pick(rng: np.random.Generator, values: Any, count: int = 1) -> list[Any]:
    """Return some different values, in an order that is drawn."""
    return [values[int(i)] for i in rng.permutation(len(values))[:count]]


def whole(rng: np.random.Generator, low: int, high: int, step: int = 1) -> int:
    """Return a whole number from low to high, both possible, in steps."""
    return low + step * int(rng.integers((high - low) // step + 1))


def page(body: str, script: str, title: str) -> str:
    """Return a whole page."""
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>body {{ margin: 0 }} canvas {{ display: block }}</style>\n{body}\n"
        f"<script>\n{script}\n</script>\n</html>\n"
    )
