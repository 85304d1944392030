"""Scenes of plain shapes as a screenshot should show them.

A pixel within `slack` of an outline may be anything: pages smooth edges as they like. All the
others have one right colour. Not here: text, which is compared as text (`judging.py`).
"""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TOLERANCE = 12
"""Of each of red, green, blue, out of 255."""
LEAST_RIGHT = 0.985
"""Of a shape's pixels."""
LEAST_PIXELS = 12
"""A shape of which fewer can be seen is not compared."""

Floats = NDArray[np.float64]


def read_png(data: str) -> NDArray[np.uint8]:
    """Return an image of rows, columns and red, green, blue; from base64."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return np.asarray(image.convert("RGB"))


def parse_colour(text: str) -> tuple[int, int, int]:
    """Return red, green, blue of `#rrggbb`."""
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


class Scene:
    """A picture of width x height at the top left of the page, painted shape over shape."""

    def __init__(self, width: int, height: int, background: str, *, slack: float = 1.5) -> None:
        self.width, self.height, self.slack = width, height, slack
        self.colours, self.names = [parse_colour(background)], ["background"]
        self._x, self._y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
        self._shape = np.zeros((height, width), int)
        self._is_certain = np.ones((height, width), bool)

    def circle(self, x: float, y: float, radius: float, colour: str, name: str) -> None:
        """Paint a disc."""
        self._paint(np.hypot(self._x - x, self._y - y) - radius, colour, name)

    def rect(self, x: float, y: float, width: float, height: float, colour: str, name: str) -> None:
        """Paint a rectangle from its top left corner."""
        if width > 0 and height > 0:
            self._box(
                self._x - x - width / 2, self._y - y - height / 2, width, height, colour, name
            )

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        width: float,
        colour: str,
        name: str,
    ) -> None:
        """Paint a straight line with flat ends."""
        (x0, y0), (x1, y1) = start, end
        length = math.hypot(x1 - x0, y1 - y0)
        cos, sin = (x1 - x0) / length, (y1 - y0) / length
        x, y = self._x - (x0 + x1) / 2, self._y - (y0 + y1) / 2
        self._box(x * cos + y * sin, y * cos - x * sin, length, width, colour, name)

    def faults(self, image: NDArray[np.uint8]) -> list[str]:
        """Return the shapes that an image does not show as it should."""
        if image.shape[0] < self.height or image.shape[1] < self.width:
            return ["the picture is not all there"]
        seen = image[: self.height, : self.width].astype(int)
        wanted = np.asarray(self.colours)[self._shape]
        is_right = (np.abs(seen - wanted) <= TOLERANCE).all(axis=2)
        found = []
        for number, name in enumerate(self.names):
            pixels = is_right[self._is_certain & (self._shape == number)]
            if pixels.size >= LEAST_PIXELS and pixels.mean() < LEAST_RIGHT:
                found.append(f"{name}: {pixels.mean():.1%} of its pixels are right")
        return found

    def _box(
        self, x: Floats, y: Floats, width: float, height: float, colour: str, name: str
    ) -> None:
        self._paint(np.maximum(np.abs(x) - width / 2, np.abs(y) - height / 2), colour, name)

    def _paint(self, distance: Floats, colour: str, name: str) -> None:
        """Paint where the distance from the outline is negative."""
        is_edge = np.abs(distance) < self.slack
        self._is_certain[distance <= -self.slack] = True
        self._is_certain[is_edge] = False
        self._shape[distance < 0] = len(self.names)
        self.colours.append(parse_colour(colour))
        self.names.append(name)
