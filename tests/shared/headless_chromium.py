"""A headless Chromium, driven over its debugging pipe: pages, clicks, screenshots, console errors.

Needs the program `chromium`, and nothing of Python beyond its standard library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
"""The browser's path; None where there is none."""
_DEADLINE_S = 300.0


class HeadlessChromium:
    """One browser with one page; every wait has a deadline."""

    def __init__(self, profile: Path) -> None:
        self.errors: list[str] = []
        """Errors that pages logged or threw, and resources that were refused."""
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._process = self._start(profile)
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _start(self, profile: Path) -> subprocess.Popen[bytes]:
        """Start it with descriptors 3 and 4 as the pipe's ends."""
        assert PROGRAM is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        script = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, PROGRAM, *arguments],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_commands)
        os.close(write_answers)
        return process

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the page and return its result."""
        return self._call(method, parameters, self._session)

    def open(self, url: str, *, width: int, height: int, is_dark: bool = False) -> None:
        """Open a page in a window of this size and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self._wait_for("Page.loadEventFired")
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return what an expression is worth in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn twice."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.run(f"{frame}.then(() => 1)")

    def screenshot(self, path: Path, *, is_whole: bool = False) -> Path:
        """Write what is seen, or the whole page, as PNG."""
        self.settle()
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def close(self) -> None:
        """End it and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=_DEADLINE_S)
        os.close(self._commands)
        os.close(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, method: str, parameters: dict[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, event: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not any(found["method"] == event for found in self._events):
            self._read(deadline)
        self._events = [found for found in self._events if found["method"] != event]

    def _read(self, deadline: float) -> dict[str, Any]:
        """Return the next message; notes what it says of errors."""
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0, "the browser did not answer in time"
            ready, _, _ = select.select([self._answers], [], [], left)
            if ready:
                data = os.read(self._answers, 1 << 20)
                assert data, "the browser has ended"
                self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._note(message)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        told = event["params"]
        match event["method"]:
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.errors.append(told["entry"]["text"])
            case "Page.loadEventFired":
                self._events.append(event)
