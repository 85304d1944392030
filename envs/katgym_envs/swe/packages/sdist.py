"""Keeps sdists of PyPI packages in a cache, each checked against its sha256.

Not here: how one is downloaded (`pip_client.py`) and read (`sdist_archive.py`).
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from katgym.errors import UsageError
from katgym.system.cache_folder import cache_folder, name_cache
from katgym_envs.swe.packages.pip_client import download_sdist

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """One source distribution on this machine.

    Example:
        Sdist(name="inflection", version="0.5.1", sha256="1a29...",
              path=Path("~/.cache/katgym/swe/sdists/inflection/0.5.1/inflection-0.5.1.tar.gz"))
    """

    name: str
    version: str
    sha256: str
    path: Path


def sdist_cache() -> Path:
    """Return the cache's directory, `swe/sdists` in katgym's; it may not exist."""
    return cache_folder() / "swe" / "sdists"


def fetch_sdist(
    name: str,
    version: str,
    *,
    sha256: str | None = None,
    cache_dir: Path | None = None,
    timeout_s: float = 300.0,
) -> Sdist:
    """Return an sdist from the cache, or download it with pip; nothing of the package is run.

    Any number of processes may ask at once. `sha256` None accepts whatever the index serves.
    Raises `UsageError` (unknown package or version, no sdist, wrong sha256) and
    `InfrastructureError` (the index cannot be reached).
    """
    # Both become paths and arguments of pip: an option or a URL must not pass for one.
    if not _NAME.fullmatch(name):
        raise UsageError(f"a package name is letters, digits and '-_.', got {name!r}")
    if not _VERSION.fullmatch(version) or ".." in version:
        raise UsageError(f"the version of {name!r} is like '1.2.3', got {version!r}")
    folder = (cache_dir or sdist_cache()) / name.lower() / version
    cached = sorted(path for path in folder.glob("*") if path.is_file())
    for path in cached:
        found = _sdist(name, version, path)
        if sha256 is None or found.sha256 == sha256:
            return found
        _log.warning("%s in the cache has another sha256; downloading it again", path)
    with name_cache(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as temporary:
        fresh = download_sdist(name, version, Path(temporary), timeout_s=timeout_s)
        found = _sdist(name, version, fresh)
        if sha256 is not None and found.sha256 != sha256:
            raise UsageError(
                f"the sdist of {name}=={version} has sha256 {found.sha256!r}, expected {sha256!r}. "
                "Either the index serves something else, or the expected value is mistyped"
            )
        folder.mkdir(exist_ok=True)
        target = folder / fresh.name
        fresh.replace(target)
    return Sdist(name=name, version=version, sha256=found.sha256, path=target)


def _sdist(name: str, version: str, path: Path) -> Sdist:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Sdist(name=name, version=version, sha256=digest, path=path)
