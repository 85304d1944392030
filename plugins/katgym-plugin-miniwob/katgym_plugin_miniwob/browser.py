"""A headless Chromium, driven by its DevTools protocol over a pipe: no port and no driver.

One browser serves a process; each episode has a tab, and a tab keeps its page for the next one.
"""

from __future__ import annotations

import atexit
import io
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any

import katgym

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
VARIABLE = "KATGYM_CHROMIUM"
OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"),
    *("--disable-renderer-backgrounding", "--no-sandbox"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=500,500"),
)
"""No name resolves: pages come from files. Chromium has no sandbox of its own, which it cannot have
as root: nothing but those pages runs in it."""
TIMEOUT_S = 30.0


class Browser:
    """One Chromium process."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="katgym-chromium-")
        # The protocol wants descriptors 3 and 4; a shell puts standard input and output there.
        script = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        options = [*OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        threading.Thread(target=self._read, name="katgym-chromium", daemon=True).start()
        atexit.register(self.close)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send one command and return its result; `InfrastructureError` if there is none."""
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        self._waiting[number] = answer
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        to_browser = self.process.stdin
        assert to_browser is not None
        try:
            with self._lock:
                to_browser.write(json.dumps(message).encode() + b"\0")
                to_browser.flush()
            found = answer.result(TIMEOUT_S)
        except (OSError, TimeoutError) as e:
            raise katgym.InfrastructureError(f"Chromium does not answer {method}: {e!r}") from e
        finally:
            del self._waiting[number]
        if "error" in found:
            raise katgym.InfrastructureError(f"Chromium refuses {method}: {found['error']}")
        return dict(found["result"])

    def close(self) -> None:
        """End the process and remove what it wrote; may be called twice."""
        atexit.unregister(self.close)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self) -> None:
        from_browser, rest = self.process.stdout, b""
        assert isinstance(from_browser, io.BufferedReader)
        while chunk := from_browser.read1(2**16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if waiting := self._waiting.get(message.get("id")):
                    waiting.set_result(message)
        for waiting in list(self._waiting.values()):
            waiting.set_exception(OSError("the browser has ended"))


class Tab:
    """One tab with a page."""

    def __init__(self, browser: Browser, url: str, *, script: str) -> None:
        """Open a page; script: runs in it before any of its own."""
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + TIMEOUT_S
        while not self.evaluate("document.readyState === 'complete' && 'core' in window"):
            if time.monotonic() > deadline:
                raise katgym.InfrastructureError(f"Chromium does not load {url}")
            time.sleep(0.01)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command for this tab."""
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, a promise's when it is kept."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise katgym.InfrastructureError(f"the page raised: {found['exceptionDetails']}")
        return found["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window and click there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@lru_cache(maxsize=1)
def shared_browser() -> Browser:
    """Return this process's browser, started on first use."""
    program = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None or not Path(program).exists():
        raise katgym.MissingDependencyError(
            f"no Chromium: apt-get install chromium, or set {VARIABLE} to its path"
        )
    return Browser(program)
