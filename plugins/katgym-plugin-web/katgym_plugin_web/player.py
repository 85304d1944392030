"""Plays one hostile page by a job's steps: a program, run in a sandbox.

Reads a job as JSON from stdin and writes what it saw to stdout. The standard library alone: nothing
else is there. Elements are found and read by DevTools' accessibility tree, pixels by its
screenshots: no function that a page can replace has a part in it, but for the state, which is the
page's own word. Not here: the browser (`tab.py`), verdicts (`judging.py`), the sandbox
(`playing.py`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from katgym_plugin_web.tab import FRAME_MS, MAX_LINES, PageError, VirtualTab

STARTED = "the page starts"
"""Written to stderr before the page runs: what fails later is the page's fault."""
STATE = "JSON.stringify(typeof state === 'function' ? state() : null)"
MAX_STATE, MAX_TEXT, MAX_ELEMENTS = 20_000, 500, 500


class StepPlayer:
    """Carries out steps, each a list of its name and arguments."""

    def __init__(self, tab: VirtualTab) -> None:
        self.tab = tab
        self.looks: list[dict[str, Any]] = []
        self.missing: list[str] = []

    def do(self, name: str, *arguments: Any) -> None:
        """Carry out one step."""
        getattr(self, f"do_{name}")(*arguments)

    def do_wait(self, duration_ms: float) -> None:
        self.tab.wait(duration_ms)

    def do_resize(self, width: int, height: int) -> None:
        """Change the window's size, which takes a frame: wait afterwards."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tab.send("Emulation.setDeviceMetricsOverride", **metrics)

    def do_point(self, x: float, y: float) -> None:
        """Click at a point."""
        self._mouse("mouseMoved", x, y)
        self._mouse("mousePressed", x, y)
        self._mouse("mouseReleased", x, y)

    def do_drag(self, *points: list[float]) -> None:
        """Press at the first point, move over the others, a frame each, and let go at the last."""
        self._mouse("mouseMoved", *points[0])
        self._mouse("mousePressed", *points[0])
        for x, y in points[1:]:
            self._mouse("mouseMoved", x, y, buttons=1)
            self.tab.wait(FRAME_MS)
        self._mouse("mouseReleased", *points[-1])

    def do_click(self, role: str, name: str) -> None:
        element = self._find(role, name)
        if element is not None:
            x, y, width, height = element["box"]
            self.do_point(x + width / 2, y + height / 2)

    def do_type(self, role: str, name: str, text: str) -> None:
        """Replace the text of a field."""
        element = self._find(role, name)
        if element is None:
            return
        self.do_click(role, name)
        for commands in (["selectAll"], ["deleteBackward"]):
            self._input("dispatchKeyEvent", type="rawKeyDown", key="x", commands=commands)
        if text:
            self._input("insertText", text=text)

    def do_look(self) -> None:
        """Record state and elements, and the pixels of the last frame."""
        found = self.tab.call("Runtime.evaluate", expression=STATE, returnByValue=True)
        self.looks.append(
            {
                "at_ms": self.tab.elapsed_ms,
                "state": parse_state(found["result"].get("value")),
                "elements": self._elements(),
                "png": self.tab.picture,
            }
        )

    def _find(self, role: str, name: str) -> dict[str, Any] | None:
        for element in self._elements():
            if element["role"] == role and element["name"] == name:
                return element
        self.missing.append(f"{role} {name!r}")
        return None

    def _elements(self) -> list[dict[str, Any]]:
        nodes = self.tab.call("Accessibility.getFullAXTree")["nodes"]
        by_id = {node["nodeId"]: node for node in nodes}

        def text_of(node: dict[str, Any], depth: int = 0) -> str:
            if node.get("role", {}).get("value") == "StaticText":
                return str(node.get("name", {}).get("value", ""))
            inner = (by_id[i] for i in node.get("childIds", ()) if i in by_id)
            return "".join(text_of(n, depth + 1) for n in inner) if depth < 50 else ""

        elements = []
        for node in nodes[:MAX_ELEMENTS]:
            role = node.get("role", {}).get("value", "")
            if node.get("ignored") or role in ("InlineTextBox", "StaticText", "RootWebArea"):
                continue
            words = [str(node.get(key, {}).get("value", "")) for key in ("role", "name", "value")]
            found = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
            told = clean([*words, text_of(node), str(found.get("checked", ""))])
            element = dict(zip(("role", "name", "value", "text", "checked"), told, strict=True))
            elements.append({**element, "box": self._box(node)})
        return elements

    def _box(self, node: dict[str, Any]) -> list[float]:
        try:
            found = self.tab.call("DOM.getBoxModel", backendNodeId=node["backendDOMNodeId"])
        except (PageError, KeyError):  # it has none
            return [0, 0, 0, 0]
        corners = found["model"]["border"]
        left, top = min(corners[::2]), min(corners[1::2])
        return [left, top, max(corners[::2]) - left, max(corners[1::2]) - top]

    def _mouse(self, kind: str, x: float, y: float, **options: Any) -> None:
        if kind != "mouseMoved":
            options |= {"button": "left", "clickCount": 1}
        self._input("dispatchMouseEvent", type=kind, x=x, y=y, **options)

    def _input(self, method: str, **params: Any) -> None:
        number = self.tab.send(f"Input.{method}", **params)
        if params.get("type") != "mouseMoved":  # which is answered with the next frame or event
            self.tab.result(number)


def parse_state(text: object) -> Any:
    """Return the state that a page tells, None for what is none."""
    if not isinstance(text, str) or len(text) > MAX_STATE:
        return None
    try:
        return json.loads(text, parse_int=lambda t: int(t) if len(t) < 18 else float(t))
    except (ValueError, RecursionError):
        return None


def clean(lines: list[str]) -> list[str]:
    """Return a few lines, shortened, of characters that can be written."""
    return [line[:MAX_TEXT].encode("utf-8", "replace").decode() for line in lines[:MAX_LINES]]


def play(job: dict[str, Any]) -> dict[str, Any]:
    """Play a job; what the page does wrong is in `failure`."""
    tab = VirtualTab(job["program"], job["size"], job["timeout_s"])
    player, failure = StepPlayer(tab), ""
    sys.stderr.write(STARTED)
    sys.stderr.flush()
    try:
        tab.open(job["html"], seed=job["seed"], start_ms=job["start_ms"])
        for step in job["steps"]:
            player.do(*step)
    except (PageError, OSError) as e:
        failure = str(e)
    return {
        "failure": failure,
        "looks": player.looks,
        "missing": clean(player.missing),
        "console": clean(tab.console),
        "requests": clean(tab.requests),
    }


if __name__ == "__main__":
    json.dump(play(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # without waiting for Chromium: the sandbox ends it
