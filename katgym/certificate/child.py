"""A process of its own that plays an env on request, and can be killed.

Not here: the program it runs (`child_process.py`).
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from katgym.certificate.findings import Skipped
from katgym.environment.env import Env
from katgym.system.processes import kill_session


def reference(env: Env) -> dict[str, Any]:
    """Return JSON by which another process makes the env; `Skipped` where it cannot."""
    kind = type(env)
    args, kwargs = env._init_arguments
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ or file is None:
        raise Skipped(f"no other process can import {kind.__module__}.{kind.__qualname__}")
    made = {"args": list(args), "kwargs": kwargs}
    try:
        if json.loads(json.dumps(made)) != made:
            raise TypeError("an argument changes in JSON")
    except TypeError as e:
        raise Skipped(f"no other process can make the env: its arguments are no JSON: {e}") from e
    return {"module": kind.__module__, "file": file, "name": kind.__qualname__, **made}


class Child:
    """One request, answered by lines of JSON; killed when the block is left."""

    def __init__(self, request: dict[str, Any], *, hash_seed: str = "0") -> None:
        self._request = request
        self._hash_seed = hash_seed
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        path = os.pathsep.join(entry or "." for entry in sys.path)
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "katgym.certificate.child_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONHASHSEED": self._hash_seed, "PYTHONPATH": path},
            cwd=Path.cwd(),
            start_new_session=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._talk, daemon=True).start()
        return self

    def _talk(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(self._request))
            self._process.stdin.close()
            for line in self._process.stdout:
                self._lines.put(line)
        except (OSError, ValueError):
            pass  # it ended early: what it wrote before is all there is
        self._lines.put("")

    def read(self, timeout_s: float) -> Any:
        """Return the next answer; None when there is no more. Raises `TimeoutError`."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None
        return json.loads(line) if line else None

    def error(self) -> str:
        """Return the last line that the process wrote on standard error, or its exit code."""
        text = self._stderr.strip() or f"exit code {self._process.returncode}"
        return text.splitlines()[-1][:300]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        kill_session(self._process)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.seek(0)
        self._stderr = self._errors.read().decode("utf-8", "replace")
        self._errors.close()
