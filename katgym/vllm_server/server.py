"""A vLLM server as a subprocess: started, waited for, watched, stopped with all it started.

    with VllmServer(VllmServerConfig(model="Qwen/Qwen3-0.6B")) as server:
        policy = katgym.policy(f"vllm:{server.url}#{server.config.name}")

A guard (`process_guard.py`) stands between, so that nothing is left when this process ends, in
whatever way. Failures tell the cause and show the log.

Not here: settings (`config.py`); the environment (`environment.py`); servers that run already
(`status.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
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
from katgym.vllm_server.failure_hints import hint
from katgym.vllm_server.middleware.engine_end import find_cause, read_log

logger = logging.getLogger(__name__)

_TAIL_LINES = 40
_MAX_LINES = 2000
"""From its log's end, in which words are looked for that have an advice."""
_POLL_S = 0.5
_ENDS_S = 30.0
"""Wall seconds within which a server whose engine has ended ends as well."""
_MAX_BATCH = 16_384
"""Tokens that a batch takes at most, if nobody chose (`get_batch_defaults` of vLLM 0.32)."""
_NO_PIECES = "enable_chunked_prefill=False"
"""What its log has where prompts are prefilled whole."""


class ServerError(InfrastructureError):
    """A vLLM server did not start, or ended; the text says why, what to do, and shows its log."""


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

    @property
    def end(self) -> str:
        """What became of it, with the cause where its log tells one; "" while it runs."""

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

    @property
    def end(self) -> str:
        """What became of it, with the cause where its log tells one; "" while it runs."""
        code = self.exit_code
        if code is None:
            return ""
        cause, _ = find_cause(self._log())
        how = f"ended with exit code {code}"
        number = -code if code < 0 else code - 128
        with contextlib.suppress(ValueError):
            how = f"was killed ({signal.Signals(number).name})"
        return f"{how}: {cause}" if cause else f"{how}; its log tells no cause"

    def log_tail(self, num_lines: int = _TAIL_LINES) -> str:
        """Return the last lines of its output since it was started last."""
        return "\n".join(self._log().splitlines()[-num_lines:])

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
                    raise self._error(f"vLLM did not start: after {seconds:.0f} s it {self.end}")
                if seconds > self.config.start_timeout_s:
                    raise self._error(
                        f"vLLM was not healthy after {self.config.start_timeout_s:g} s"
                    )
                if self._is_unwanted.wait(_POLL_S):
                    raise ServerError("vLLM was stopped while it started")
            if not self.is_alive:  # another program answers at this port
                raise self._error(f"vLLM {self.end}")
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

    def try_model(self) -> None:
        """Have it answer a request with a seed, whose prompts it has to cut if it ever cuts any.

        Raises `ServerError` with what ended it, or with its answer.
        """
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with httpx.Client(
                base_url=self.url, headers=headers, timeout=self.config.start_timeout_s
            ) as client:
                limit = client.get("/v1/models").json()["data"][0]["max_model_len"]
                is_cut = _NO_PIECES not in self.log_tail(num_lines=_MAX_LINES)
                body = {
                    "model": self.config.name,
                    "prompt": _prompts(limit - 1) if is_cut else [[1]],
                    "max_tokens": 1,
                    "seed": 1,
                }
                answer = client.post("/v1/completions", json=body)
            told = f"answered {answer.status_code}: {answer.text:.500}"
            is_well = answer.status_code == 200
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as e:
            told, is_well = f"did not answer as vLLM does ({type(e).__name__}: {e})", False
        if not is_well:
            if self.wait(_ENDS_S) is not None:
                told = self.end
            raise self._error(f"vLLM serves, but at its first request it {told}")

    def check(self) -> None:
        """Raise `ServerError` with what ended it, if it has."""
        if not self.is_alive:
            raise self._error(f"vLLM {self.end}")

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
            told = f"{self._log_start}:{log_file.absolute()}"
            return subprocess.Popen(
                [*own, str(self.config.stop_timeout_s), *command],
                env=server_environment(self.config, python, token=self._token, log=told),
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

    def _log(self) -> str:
        if self.log_file is None or not self.log_file.exists():
            return ""
        return read_log(self.log_file, self._log_start)

    def _error(self, what: str) -> ServerError:
        log = self._log()
        cause, num_lines = find_cause(log)
        lines = log.splitlines()
        likely = hint(cause or "\n".join(lines[-_MAX_LINES:]))
        advice = f" Probably {likely}." if likely else ""
        which = "Its log up to that" if cause else "The end of its log"
        shown = lines[:num_lines] if cause else lines  # what follows from a cause is long
        told = "\n".join(shown[-_TAIL_LINES:])
        return ServerError(f"{what}.{advice}\n{which} ({self.log_file}):\n{told}")


def _prompts(max_tokens: int) -> list[list[int]]:
    """Return prompts that no batch takes whole, as the first may be taken alone."""
    length = min(max_tokens, _MAX_BATCH + 1)
    num = 1 if length > _MAX_BATCH else 2 + _MAX_BATCH // length
    return [[1 + place % 64] * length for place in range(num)]  # the prefix cache knows none


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
