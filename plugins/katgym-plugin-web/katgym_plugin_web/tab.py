"""A Chromium with one tab in virtual time, driven by its DevTools protocol over a pipe.

The standard library alone: it runs in a sandbox. Time stands still but for its `wait`: timers,
animations and `Date` move by `FRAME_MS` a frame, whatever the machine does meanwhile. Not here:
what is done with a page (`player.py`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from typing import Any

FRAME_MS = 20
LOAD_MS = 100
"""Virtual time at which the first step begins."""
URL = "http://page.test/"
OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--deterministic-mode", "--hide-scrollbars", "--force-device-scale-factor=1"),
    *("--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"),
    *("--js-flags=--max-old-space-size=256", "--user-data-dir=/tmp/profile"),
)
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " font-src data:; form-action 'none'; base-uri 'none';"
    " sandbox allow-scripts allow-forms allow-same-origin"
)
"""No requests, frames, workers, dialogs, popups, `eval`."""
SEEDED = """(seed => {
  const next = () => {
    seed = (seed + 0x6D2B79F5) | 0;
    let x = Math.imul(seed ^ (seed >>> 15), seed | 1);
    x = (x + Math.imul(x ^ (x >>> 7), x | 61)) ^ x;
    return (x ^ (x >>> 14)) >>> 0;
  };
  Math.random = () => next() / 2 ** 32;
  crypto.getRandomValues = array => { for (const i in array) array[i] = next(); return array; };
})(%d)"""
MAX_LINES = 20


class PageError(Exception):
    """The page hangs, crashes, leaves or is too large."""


class VirtualTab:
    """A Chromium with one tab, driven over a pipe."""

    def __init__(self, program: str, size: tuple[int, int], timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        (to_read, self._to), (self._from, to_write) = os.pipe(), os.pipe()
        redirect = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'  # the protocol wants 3 and 4
        command = ["bash", "-c", redirect, "bash", str(to_read), str(to_write), program, *OPTIONS]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._num_sent, self._session = b"", 0, ""
        self._answers: dict[int, dict[str, Any]] = {}
        self.console: list[str] = []
        self.requests: list[str] = []
        self.elapsed_ms, self._num_expired, self.picture = 0.0, 0, ""
        target = self.call(
            "Target.createTarget",
            url="about:blank",
            width=size[0],
            height=size[1],
            enableBeginFrameControl=True,
        )
        found = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]

    def send(self, method: str, **params: Any) -> int:
        """Send a command without waiting; return its number."""
        self._num_sent += 1
        message = {"id": self._num_sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        left = memoryview(json.dumps(message).encode() + b"\0")
        while left:
            left = left[os.write(self._to, left) :]
        return self._num_sent

    def result(self, number: int) -> dict[str, Any]:
        """Wait for a command's answer, taking in the events before it."""
        while number not in self._answers:
            self._take()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PageError(f"the browser refuses: {answer['error'].get('message')}")
        return dict(answer["result"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        return self.result(self.send(method, **params))

    def wait(self, duration_ms: float, *, policy: str = "advance") -> None:
        """Let virtual time pass, frame by frame, and take a picture of the last."""
        end = self.elapsed_ms + duration_ms
        while self.elapsed_ms < end:
            step, before = min(FRAME_MS, end - self.elapsed_ms), self._num_expired
            self.send("Emulation.setVirtualTimePolicy", policy=policy, budget=step)
            while self._num_expired == before:
                self._take()
            self.elapsed_ms += step
            shot = {"screenshot": {"format": "png"}} if self.elapsed_ms >= end else {}
            # No frame but here: one without time since the last can stall the browser.
            found = self.call(
                "HeadlessExperimental.beginFrame",
                **{"frameTimeTicks": self._base_ms + self.elapsed_ms, "interval": FRAME_MS, **shot},
            )
            self.picture = found.get("screenshotData", self.picture)

    def open(self, html: str, *, seed: int, start_ms: float) -> None:
        """Load the page at a time since 1970, in ms; time stands still `LOAD_MS` later."""
        self._html = html
        for domain in ("Page", "Runtime", "Log", "DOM", "Accessibility", "Inspector"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setTimezoneOverride", timezoneId="UTC")
        self.call("Fetch.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=SEEDED % seed)
        paused = self.call(
            "Emulation.setVirtualTimePolicy", policy="pause", initialVirtualTime=start_ms / 1000
        )
        self._base_ms = paused["virtualTimeTicksBase"]
        self._is_there = self._is_loaded = False
        self.call("Page.navigate", url=URL)
        while not self._is_there:
            self._take()
        while self.elapsed_ms < LOAD_MS:
            self.wait(FRAME_MS, policy="pauseIfNetworkFetchesPending")
        if not self._is_loaded:
            raise PageError("the page does not load")

    def _take(self) -> None:
        """Take in what the browser says next."""
        while b"\0" not in self._rest:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], left_s)[0]:
                raise PageError("the page hangs")
            chunk = os.read(self._from, 1 << 16)
            if not chunk:
                raise PageError("the browser has ended")
            self._rest += chunk
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self._answers[message["id"]] = message
        else:
            self._heed(message["method"], message["params"])

    def _heed(self, method: str, event: dict[str, Any]) -> None:
        if method == "Emulation.virtualTimeBudgetExpired":
            self._num_expired += 1
        elif method == "Page.frameNavigated":
            self._is_there = True
        elif method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Inspector.targetCrashed":
            raise PageError("the page crashes")
        elif method == "Page.javascriptDialogOpening":
            self.send("Page.handleJavaScriptDialog", accept=False)
            self.console.append("a dialog was opened")
        elif method == "Fetch.requestPaused":
            self._fulfil(event)
        elif len(self.console) >= MAX_LINES:
            return
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.console.append(" ".join(str(a.get("value", "?")) for a in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.console.append(str(event["entry"]["text"]))

    def _fulfil(self, event: dict[str, Any]) -> None:
        request = event["requestId"]
        if event["request"]["url"] == URL and self._html:
            names = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": POLICY}
            headers = [{"name": name, "value": value} for name, value in names.items()]
            body, self._html = base64.b64encode(self._html.encode("utf-8", "replace")).decode(), ""
            self.send(
                "Fetch.fulfillRequest",
                requestId=request,
                responseCode=200,
                responseHeaders=headers,
                body=body,
            )
        else:
            self.requests = [*self.requests, event["request"]["url"]][:MAX_LINES]
            self.send("Fetch.failRequest", requestId=request, errorReason="AccessDenied")
