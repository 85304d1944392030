"""Virtual environments for sandboxes: made once per set of pinned requirements, then shared.

A sandbox mounts one read-only (`SandboxSpec.python`). Not here: what a task needs (its recipe).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from katgym.errors import InfrastructureError, UsageError

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.+!_-]+")
_TIMEOUT_S = 900.0


def venv_folder() -> Path:
    """Return where they are kept, `$XDG_CACHE_HOME/katgym/venvs`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "katgym" / "venvs"


def ensure_venv(requirements: Sequence[str], *, root: Path | None = None) -> Path:
    """Return the interpreter of a venv with exactly these requirements, made on first use.

    requirements: `name==version` each; without any, the venv has the standard library alone.
    root: where it is kept, `venv_folder()` by default.

    Blocks for as long as pip takes; processes that want the same one wait for each other, and one
    that is interrupted leaves nothing half-made. `UsageError` for a requirement that is not pinned,
    `InfrastructureError` with pip's last lines if it cannot be installed.
    """
    wanted = sorted(set(requirements))
    for text in wanted:
        if not _PINNED.fullmatch(text):
            raise UsageError(
                f"a sandbox's requirement is pinned like 'pytest==9.2.0', got {text!r}"
            )
    folder = (root or venv_folder()) / _key(wanted)
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, wanted)
            (folder / "complete").write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python


def _key(requirements: Sequence[str]) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    text = json.dumps([version, sys.base_prefix, list(requirements)])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: Sequence[str]) -> None:
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    python = str(base if base.exists() else sys.executable)
    _run([python, "-I", "-m", "venv", *([] if requirements else ["--without-pip"]), str(folder)])
    if requirements:
        pip = [str(folder / "bin" / "python"), "-I", "-m", "pip"]
        _run([*pip, "install", "--quiet", "--disable-pip-version-check", *requirements])
        # Nothing installs into it later, and its own packages are not what tests may import.
        _run([*pip, "uninstall", "--quiet", "--yes", "setuptools", "pip"])
    folder.chmod(0o755)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise InfrastructureError(f"a venv for sandboxes cannot be made: {e}") from e
    if done.returncode != 0:
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise InfrastructureError(
            f"a venv for sandboxes cannot be made: {' '.join(command[-4:])!r} ended with"
            f" {done.returncode}:\n{told}"
        )
