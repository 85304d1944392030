"""A vLLM server as a subprocess: started, waited for, watched, stopped with all it started.

    with VllmServer(VllmServerConfig(model="Qwen/Qwen3-0.6B")) as server:
        policy = katgym.policy(f"vllm:{server.url}#{server.config.name}")

A guard (`process_guard.py`) stands between, so that nothing is left when this process ends, in
whatever way. Failures carry the end of the server's log.

Not here: settings (`config.py`); the environment (`environment.py`); servers that run already
(`status.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Protocol, Self

import httpx

from katgym.errors import InfrastructureError, UsageError
from katgym.vllm_server import process_guard
from katgym.vllm_server.config import VllmServerConfig, server_command, server_environment
from katgym.vllm_server.environment import environment_python
from katgym.vllm_server.failure_hints import find_errors, hint

logger = logging.getLogger(__name__)

_TAIL_LINES = 40
_POLL_S = 0.5


class ServerError(InfrastructureError):
    """A vLLM server did not start, or ended; the text says what to do and shows its log's end."""


class ServerProcess(Protocol):
    """A server that was started: here (`VllmServer`), or on a node of a cluster (`RayServer`)."""

    log_file: Path | None

    @property
    def url(self) -> str:
        """Where it listens; valid once started."""

    @property
    def place(self) -> str:
        """The machine it is on."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as is known; it may not answer yet."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and where nobody is left who knows."""

    async def __aenter__(self) -> Self:
        """Start it, as often as it has ended."""

    async def __aexit__(self, *_: object) -> None:
        """End it; may be called twice."""


class VllmServer:
    """One server; a context manager, `with` and `async with`. Restartable; not thread-safe."""

    def __init__(self, config: VllmServerConfig, *, token: str = "") -> None:
        """token: every request but for `/health` has to bring it; "": none has to."""
        self.config = config
        self._token = token
        self.port = config.port
        """The one it listens on, once started."""
        self.log_file = config.log_file
        """Where its output goes; a temporary file, if the config names none, once started."""
        self._log_start = 0
        """Bytes of it that earlier servers wrote."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens; valid once started."""
        host = "127.0.0.1" if self.config.host in ("0.0.0.0", "::") else self.config.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def place(self) -> str:
        """The machine it is on: this one."""
        return "here"

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; it may not answer yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The server's exit code; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def log_tail(self, num_lines: int = _TAIL_LINES) -> str:
        """Return the last lines of its output since it was started last."""
        if self.log_file is None or not self.log_file.exists():
            return ""
        text = self.log_file.read_bytes()[self._log_start :].decode(errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])

    def start(self) -> Self:
        """Start it and return when it is healthy.

        Raises `UsageError` for a model that is not there, `ServerError` when it ends or is not
        healthy in time; nothing runs then.
        """
        return self._start_at(self.config.port)

    def _start_at(self, port: int) -> Self:
        if self.is_alive:
            raise UsageError("the server runs already; stop it first, or call restart")
        self._end()  # one that ended by itself left a pipe open
        model = self.config.model
        path = Path(model).expanduser()  # hub ids are vLLM's to judge
        if path.is_dir() and not (path / "config.json").exists():
            raise UsageError(
                f"the folder {model!r} has no config.json: it is no model of transformers"
            )
        if not path.exists() and (path.is_absolute() or model.startswith((".", "~"))):
            raise UsageError(f"there is no folder {model!r}; name one with a model, or a hub id")
        python = environment_python(self.config)
        self.port = _free_port(self.config.host, port)
        if self.log_file is None:
            handle, name = tempfile.mkstemp(prefix="katgym-vllm-", suffix=".log")
            os.close(handle)
            self.log_file = Path(name)
        self._is_unwanted.clear()
        try:
            self._process = self._spawn(python, self.log_file)
            start = time.monotonic()
            while not is_healthy(self.url):
                seconds = time.monotonic() - start
                if not self.is_alive:
                    raise self._error(
                        f"vLLM ended with exit code {self.exit_code} after {seconds:.0f} s"
                    )
                if seconds > self.config.start_timeout_s:
                    raise self._error(
                        f"vLLM was not healthy after {self.config.start_timeout_s:g} s"
                    )
                if self._is_unwanted.wait(_POLL_S):
                    raise ServerError("vLLM was stopped while it started")
            if not self.is_alive:  # another program answers at this port
                raise self._error(f"vLLM ended with exit code {self.exit_code}")
        except BaseException:
            self._end()
            raise
        logger.info("vLLM serves %r at %s", self.config.name, self.url)
        return self

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for it to end by itself; its exit code, None when it still runs after the time."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End it and all that it started; may be called twice.

        A temporary log goes with it, unless the server had ended by itself.
        """
        is_needless = self.is_alive and self.config.log_file is None
        self._end()
        if is_needless and self.log_file is not None:
            self.log_file.unlink(missing_ok=True)
            self.log_file = None

    def restart(self) -> Self:
        """Stop it, if it runs, and start it again on the same port."""
        self._end()
        return self._start_at(self.port)

    def check(self) -> None:
        """Raise `ServerError` with the end of its log if it has ended."""
        if not self.is_alive:
            raise self._error(f"vLLM ended with exit code {self.exit_code}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._is_unwanted.set()
            with contextlib.suppress(InfrastructureError):
                await starting
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _spawn(self, python: Path, log_file: Path) -> subprocess.Popen[bytes]:
        command = server_command(self.config, python, self.port, is_guarded=bool(self._token))
        # By its path and without this environment's settings: it needs no package of ours.
        own = [sys.executable, "-I", str(Path(process_guard.__file__))]
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:  # what a server before it wrote may tell why it ended
            self._log_start = log.seek(0, os.SEEK_END)
            return subprocess.Popen(
                [*own, str(self.config.stop_timeout_s), *command],
                env=server_environment(self.config, python, token=self._token),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then stops it
            )

    def _end(self) -> None:
        """Ask the guard to end, and wait for it."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=self.config.stop_timeout_s + 15.0)
        except subprocess.TimeoutExpired:
            logger.warning("the guard of vLLM hangs and is killed; processes may be left")
            process.kill()
            process.wait()

    def _error(self, what: str) -> ServerError:
        log = self.log_tail(num_lines=2000)
        likely = hint(log)
        advice = f" Probably {likely}." if likely else ""
        raised = "".join(f"\n{line}" for line in find_errors(log))
        tail = self.log_tail()
        return ServerError(
            f"{what}.{advice}{raised}\nThe end of its log ({self.log_file}):\n{tail}"
        )


def is_healthy(url: str, *, timeout_s: float = 5.0) -> bool:
    """Return whether a server answers that it is ready."""
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s).status_code == 200
    except httpx.TransportError:
        return False


def _free_port(host: str, port: int) -> int:
    """Return the port, or for 0 a free one; raises `ServerError` when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            raise ServerError(
                f"cannot listen on {host!r}, port {port}: {e}. Choose another with --port; 0 takes"
                " a free one"
            ) from e
        return int(probe.getsockname()[1])
