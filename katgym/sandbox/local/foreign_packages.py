"""Finds sources on the host that a sandbox's read-only /usr must not show.

Not here: hiding them (`launcher/rootfs.py`).
"""

from __future__ import annotations

from pathlib import Path

_FOREIGN = frozenset({"site-packages", "dist-packages", "third_party", "vendor", "vendored"})
_LIBRARIES = ("python", "x86_64-linux-gnu", "aarch64-linux-gnu", "gcc", "git-core")
_WHEELS = Path("/usr/share/python-wheels")
_DEPTH = 3


def foreign_packages() -> list[str]:
    """Return directories of libraries that came with the host's programs.

    A sandbox does not need them, and they may hold what is hidden from its agent: another copy of
    the very package it is to repair. Pythons keep their standard library; of any other program with
    a folder of foreign sources near its top, all is left out.
    """
    found: list[str] = []
    for root in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"):
        for path in _folders(Path(root)):
            inner = _foreign_folders(path, _DEPTH)
            if inner:
                found += inner if path.name.startswith(_LIBRARIES) else [str(path)]
    return [*found, str(_WHEELS)] if _WHEELS.is_dir() else found


def _foreign_folders(folder: Path, depth: int) -> list[str]:
    inner = _folders(folder)
    found = [str(path) for path in inner if path.name in _FOREIGN]
    if depth > 1:
        for path in inner:
            if path.name not in _FOREIGN:
                found += _foreign_folders(path, depth - 1)
    return found


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; links are not followed."""
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return []
