"""Real `katgym sandboxd` processes on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waiting import wait_until

from katgym.sandbox.venvs import ensure_venv

TOKEN = "a token of sixteen characters or more"


@dataclass
class Server:
    """A daemon that listens."""

    url: str
    process: subprocess.Popen[bytes]
    layers: Path


@contextlib.contextmanager
def running_sandboxd(folder: Path, *, port: str = "0", max_sandboxes: int = 6) -> Iterator[Server]:
    """Run a daemon; its token, its log and its layers are in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    command = [sys.executable, "-m", "katgym.cli.main", "sandboxd", "--port", port]
    command += ["--token-file", str(folder / "token"), "--max-sandboxes", str(max_sandboxes)]
    command += ["--offer-python", ensure_venv(())]
    # A layer store of its own, so that layers really travel.
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        log = folder / "log"
        found = wait_until(
            lambda: process.poll() is not None or re.search(r"http://\S+", log.read_text()), "it"
        )
        assert isinstance(found, re.Match), log.read_text()
        yield Server(found[0], process, folder / "cache" / "katgym" / "layers")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(300)
        finally:
            process.kill()
            process.wait()
