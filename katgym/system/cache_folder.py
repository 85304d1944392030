"""The cache: models unpacked, layers, venvs, downloads; all of it can be made again.

Not here: what lies there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import InfrastructureError


class CacheError(InfrastructureError):
    """The cache cannot be written; the text names the variable that moves it."""


VARIABLE = "KATGYM_CACHE"


def cache_folder() -> Path:
    """Return `$KATGYM_CACHE`, else `$XDG_CACHE_HOME/katgym`, else `~/.cache/katgym`.

    It may not exist, and need not be one that can be written to.
    """
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "katgym"
    except RuntimeError as e:  # a user without a home
        raise CacheError(f"there is no home folder to cache in: set {VARIABLE}") from e


@contextlib.contextmanager
def name_cache(folder: Path) -> Iterator[None]:
    """Turn an `OSError` of writing into the cache into an error that names the variable."""
    try:
        yield
    except OSError as e:
        raise CacheError(
            f"cannot write {str(folder)!r}: {e.strerror or e}; {VARIABLE} names another folder to"
            " cache in"
        ) from e
