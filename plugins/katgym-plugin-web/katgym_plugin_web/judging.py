"""Scripts of steps with what each look has to show, and verdicts on records.

A page passes if state, text and pixels of every look are as the family's own computation says: one
alone can be forged. Not here: families (`families/`), playing (`playing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from katgym_plugin_web.pixels import Scene, read_png
from katgym_plugin_web.playing import Record
from katgym_plugin_web.tab import FRAME_MS, LOAD_MS

Element = Mapping[str, Any]
STATE_TOLERANCE = 0.51


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one look has to show."""

    state: Mapping[str, Any]
    """What `state()` returns; further keys may be there."""
    scene: Scene | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text by role, "timer" or "timer Name"; it must be visible, too."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Value, or checkbox's state, by role and name."""


@dataclass(kw_only=True)
class Script:
    """Steps in their order, and what the looks among them have to show."""

    size: tuple[int, int]
    """Width and height of the window."""
    start_ms: int = 1_700_000_000_000
    """The time at which the page loads."""
    steps: list[list[Any]] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    now_ms: int = LOAD_MS
    """Since the page was loaded, as the steps so far have it."""

    def wait_until(self, time_ms: int) -> None:
        """Let time pass; `time_ms` is as `now_ms`."""
        self.steps.append(["wait", time_ms - self.now_ms])
        self.now_ms = time_ms

    def add(self, name: str, *arguments: Any) -> None:
        """Add a step of `player.StepPlayer` that takes no time."""
        self.steps.append([name, *arguments])

    def look(self, expected: Expected) -> None:
        """Add a look, behind a frame."""
        if self.steps and self.steps[-1][0] != "wait":
            self.wait_until(self.now_ms + FRAME_MS)
        self.steps.append(["look"])
        self.expected.append(expected)


def find_faults(script: Script, record: Record) -> list[str]:
    """Return what a record shows that is not as the script expects; empty for a pass."""
    faults = [record.failure] if record.failure else []
    faults += [f"there is no {name}" for name in record.missing]
    faults += [f"an error: {line}" for line in record.console]
    faults += [f"a request: {url}" for url in record.requests]
    if faults:
        return faults
    for number, (expected, look) in enumerate(zip(script.expected, record.looks, strict=True)):
        image = read_png(look["png"])
        found = differences(expected.state, look["state"], "state()")
        found += expected.scene.faults(image) if expected.scene else []
        found += _text_faults(expected, look["elements"], image)
        faults += [f"look {number} at {look['at_ms']:.0f} ms: {fault}" for fault in found]
    return faults


def differences(wanted: Any, seen: Any, name: str) -> list[str]:
    """Return where a JSON value is not as wanted; numbers may differ by `STATE_TOLERANCE`."""
    if isinstance(wanted, Mapping):
        if not isinstance(seen, dict) or not wanted.keys() <= seen.keys():
            return [f"{name} is {seen!r:.80}, not an object with {', '.join(wanted)}"]
        return [f for k, v in wanted.items() for f in differences(v, seen[k], f"{name}.{k}")]
    if isinstance(wanted, list):
        if not isinstance(seen, list) or len(seen) != len(wanted):
            return [f"{name} is {seen!r:.80}, not a list of {len(wanted)}"]
        pairs = enumerate(zip(wanted, seen, strict=True))
        return [f for i, (w, s) in pairs for f in differences(w, s, f"{name}[{i}]")]
    if isinstance(wanted, float):
        is_number = isinstance(seen, (int, float)) and not isinstance(seen, bool)
        is_near = is_number and math.isfinite(seen) and abs(seen - wanted) <= STATE_TOLERANCE
        return [] if is_near else [f"{name} is {seen!r:.80}, not about {wanted:.6g}"]
    is_equal = type(seen) is type(wanted) and seen == wanted
    return [] if is_equal else [f"{name} is {seen!r:.80}, not {wanted!r}"]


def _text_faults(
    expected: Expected, elements: list[Element], image: NDArray[np.uint8]
) -> list[str]:
    faults = []
    for key, wanted in expected.texts.items():
        role, _, name = key.partition(" ")
        found = [e for e in elements if e["role"] == role and name in ("", e["name"])]
        if len(found) != 1:
            faults.append(f"there are {len(found)} elements {key!r}, not one")
        elif " ".join(found[0]["text"].split()) != wanted:
            faults.append(f"{key} reads {found[0]['text']!r:.80}, not {wanted!r}")
        elif wanted and not is_drawn(image, found[0]["box"]):
            faults.append(f"the text of {key} cannot be seen")
    for key, wanted in expected.values.items():
        role, _, name = key.partition(" ")
        values = [
            e["checked"] or e["value"] for e in elements if (e["role"], e["name"]) == (role, name)
        ]
        faults += [] if values == [wanted] else [f"{key} is {values!r:.80}, not {wanted!r}"]
    return faults


def is_drawn(image: NDArray[np.uint8], box: list[float]) -> bool:
    """Return whether there is something to see in a box: some contrast in its pixels."""
    left, top, width, height = (max(0, round(value)) for value in box)
    part = image[top : top + height, left : left + width].astype(int)
    return bool(part.size) and int((part.max(axis=(0, 1)) - part.min(axis=(0, 1))).max()) >= 96
