"""Virtual environments for sandboxes, made once per list of requirements, then shared.

    python = ensure_venv(("pytest==9.2.0",))

They lie in `$XDG_CACHE_HOME/katgym/venvs/<key>`, are mounted read-only (`SandboxSpec.python`) and
hold neither katgym nor pip. Not here: what is copied instead of downloaded
(`installed_packages.py`), what a task needs (its recipe).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from katgym.errors import InfrastructureError, UsageError
from katgym.sandbox.venvs.installed_packages import copy_installed
from katgym.system.cache_folder import cache_folder
from katgym.system.locks.file_lock import lock_file

logger = logging.getLogger(__name__)

_MARKER = "katgym-venv.json"
_NO_SUCH_PACKAGE = ("No matching distribution found", "Could not find a version", "ResolutionImpos")
_NO_NETWORK = (
    "connection broken",
    "Max retries",
    "name resolution",
    "Could not fetch",
    "timed out",
)
_LOOKS_WRONG = ("Invalid requirement", "InvalidRequirement")


def ensure_venv(
    requirements: Sequence[str], *, root: Path | None = None, timeout_s: float = 600.0
) -> str:
    """Return the interpreter of a venv with these packages and what they need; blocks.

    requirements: as pip reads them, best pinned: a venv is made once and never brought up to date.
        Without any, it has the standard library alone.
    root: where it is kept, `$XDG_CACHE_HOME/katgym/venvs` by default.

    What is installed beside katgym in the very version asked for is copied, so that pytest needs no
    network; everything else comes by pip, as wheels or sdists (an sdist's build code then runs on
    this machine: name only packages you would install). Any number of processes may ask at once; a
    venv that a kill cut short is made anew.

    Raises `UsageError` for requirements that cannot be met, `InfrastructureError` when the index
    cannot be reached or the disk is full.
    """
    for requirement in requirements:
        text = requirement.strip()
        if not text or text.startswith("-") or "\n" in text:
            raise UsageError(
                f"a requirement is like 'pytest==9.2.0', got {requirement!r}; options of pip are"
                " not allowed"
            )
    wanted = tuple(sorted({r.strip() for r in requirements}))
    if root is None:
        root = cache_folder() / "venvs"
    key = json.dumps([sys.version, os.path.realpath(sys.executable), wanted])
    folder = root / hashlib.sha256(key.encode()).hexdigest()[:20]
    python = folder / "bin" / "python"
    if (folder / _MARKER).is_file() and python.exists():
        return str(python)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{folder.name}.lock").open("ab") as file:
            lock_file(file, should_wait=True)  # gone with the process, however that ends
            if not ((folder / _MARKER).is_file() and python.exists()):
                _make(folder, wanted, timeout_s)
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        hint = " (the disk is full)" if e.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise InfrastructureError(f"the venv {str(folder)!r} cannot be made{hint}: {e}") from e
    return str(python)


def pinned_requirements(python: str) -> tuple[str, ...]:
    """Return `name==version` of everything in a venv, sorted: requirements that make it again."""
    found = metadata.distributions(path=[str(site_packages(Path(python).parent.parent))])
    return tuple(sorted(f"{d.metadata['Name'].lower()}=={d.version}" for d in found))


def site_packages(folder: Path) -> Path:
    """Return the folder a venv of the running Python keeps packages in."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / name / "site-packages"


def _make(folder: Path, requirements: tuple[str, ...], timeout_s: float) -> None:
    """Make the venv in its final place, as scripts name it; the marker is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    logger.info("making a venv with %s", ", ".join(requirements) or "nothing")
    try:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        if requirements and not copy_installed(requirements, folder, site_packages(folder)):
            _install(folder, requirements, timeout_s)
        with (folder / ".marker").open("w") as file:
            json.dump({"requirements": requirements, "python": sys.version}, file)
            file.flush()
            os.fsync(file.fileno())
        _make_readable(folder)
        (folder / ".marker").rename(folder / _MARKER)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _make_readable(folder: Path) -> None:
    """Let every user read it, whatever the umask was: sandboxes run as another one."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)


def _install(folder: Path, requirements: tuple[str, ...], timeout_s: float) -> None:
    python = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "--no-input"]
    command += ["--disable-pip-version-check", "install", "--quiet", *requirements]
    env = {k: v for k, v in os.environ.items() if k != "PIP_REQUIREMENT"}
    try:
        done = subprocess.run(
            command,
            env=env,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as e:
        raise InfrastructureError(
            f"pip did not install {', '.join(requirements)} within {timeout_s:g} s"
        ) from e
    if done.returncode != 0:
        raise _error(requirements, done.stderr + done.stdout)


def _error(requirements: tuple[str, ...], output: str) -> Exception:
    names = ", ".join(requirements)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR")), (lines or ["nothing"])[-1])
    if any(part in output for part in _NO_NETWORK):
        return InfrastructureError(
            f"the package index cannot be reached for {names}; pip says: {said[:300]}"
        )
    if any(part in output for part in (*_NO_SUCH_PACKAGE, *_LOOKS_WRONG)):
        return UsageError(f"requirements {names} cannot be met; pip says: {said[:300]}")
    return InfrastructureError(f"pip could not install {names}: {said[:300]}")
