"""Downloads one sdist with pip, and turns what pip says into errors that tell what to do.

pip is the client because it already knows this machine's index, mirrors, proxies, certificates and
passwords. It is told to ask `build_stand_in.py` for metadata, so no code of the package is run. Not
here: checksums and the cache (`sdist.py`).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from katgym.errors import InfrastructureError, MissingDependencyError, UsageError, unknown_name
from katgym_envs.swe.packages import build_stand_in

_log = logging.getLogger(__name__)

# pip runs build backends with `sys.executable`; nothing else of a download does.
_RUN_PIP = """
import runpy, sys
sys.executable = sys.argv[1]
sys.argv = ["pip", *sys.argv[2:]]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_NO_NETWORK = re.compile(
    r"connection broken by|Temporary failure in name resolution|Max retries exceeded"
    r"|Read timed out|SSLError|ProxyError|Could not fetch URL|HTTP error 5\d\d|HTTP error 429"
)
# pip tells of an index that cannot be reached only when it tries again.
_RETRIES = "3"
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")


def download_sdist(name: str, version: str, directory: Path, *, timeout_s: float = 300.0) -> Path:
    """Download the sdist of `name==version` into an empty `directory`; return its path.

    Raises `UsageError` for a package or version the index does not have or has no sdist of,
    `InfrastructureError` when the index cannot be reached, `MissingDependencyError` without pip.
    """
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(
            f"{sys.executable} has no pip, which fetches packages. Hint: python -m ensurepip"
        )
    with tempfile.TemporaryDirectory(prefix="katgym-pip-") as temporary:
        stand_in = _write_stand_in(Path(temporary), name, version)
        output = _pip(
            "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
            "--use-pep517", "--retries", _RETRIES, "--dest", str(directory), f"{name}=={version}",
            interpreter=stand_in, timeout_s=timeout_s,
        )  # fmt: skip
    files = [path for path in directory.iterdir() if path.is_file()]
    if len(files) == 1:
        return files[0]
    raise _error(name, version, output, timeout_s)


def _pip(*arguments: str, interpreter: str = sys.executable, timeout_s: float) -> str:
    """Run pip and return everything it said; the exit status is told by the files it leaves."""
    command = [sys.executable, "-I", "-c", _RUN_PIP, interpreter, *arguments]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    env.pop("PIP_REQUIREMENT", None)  # it would be downloaded as well
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
            f"pip {arguments[0]} {arguments[-1]} did not finish within {timeout_s:g} s"
        ) from e
    _log.debug("pip %s: exit status %d", " ".join(arguments), done.returncode)
    return done.stdout + done.stderr


def _write_stand_in(directory: Path, name: str, version: str) -> str:
    script = directory / "python"
    command = [sys.executable, "-I", build_stand_in.__file__, name, version]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o700)
    return str(script)


def _error(name: str, version: str, output: str, timeout_s: float) -> Exception:
    """Return the exception that fits pip's output."""
    if _NO_NETWORK.search(output):
        return InfrastructureError(
            f"the package index cannot be reached for {name}=={version}; pip says: "
            f"{_last(output)}. Hint: 'pip config list' shows which index is asked"
        )
    offered = _VERSIONS.search(output)
    if offered is None:
        return InfrastructureError(f"pip could not download {name}=={version}: {_last(output)}")
    versions = [v.strip() for v in offered.group(1).split(",")]
    if versions != ["none"]:
        return UsageError(unknown_name(f"version of {name} with an sdist", version, versions))
    from katgym_envs.swe.packages.catalogue import list_packages

    if "Available versions:" in _pip("index", "versions", name, timeout_s=timeout_s):
        return UsageError(
            f"{name} has no sdist on the package index, only wheels; tasks are made from the "
            "tests an sdist ships"
        )
    return UsageError(unknown_name("package", name, list_packages(), hint=f"({name}=={version})"))


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if "WARNING: Retrying" in line or line.startswith("ERROR")]
    return (marked or lines or ["nothing"])[0][:300]
