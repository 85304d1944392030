"""Writes a run's pages: `index.html`, and one file a group in `groups/`.

They need neither a server nor each other's data; a page can be passed on by itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from katgym.errors import UsageError
from katgym.run_view.group_page import group_page
from katgym.run_view.index_page import index_page, reward_range
from katgym.run_view.run_view import GroupView, RunView
from katgym.system import explain_os_error, write_atomically

_MARK = ".katgym-view"
"""File that says that a folder's pages are ours and may be replaced."""


def write_pages(view: RunView, folder: Path) -> Path:
    """Write the pages into `folder` and return the first one's path.

    Pages of an earlier call are replaced. Raises `UsageError` for a folder of anything else.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UsageError(
            f"folder {str(folder)!r} is not empty and holds no pages of katgym view; name another"
            " with --out"
        )
    files = _file_names(view.groups)
    with explain_os_error(folder):
        (folder / "groups").mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
        for path in (folder / "groups").glob("*.html"):
            if path.name not in files.values():
                path.unlink()
    ends = reward_range(view.groups)
    names = [files[group.group_id] for group in view.groups]
    for place, group in enumerate(view.groups):
        before = names[place - 1] if place else None
        after = names[place + 1] if place + 1 < len(names) else None
        text = group_page(view, group, reward_range=ends, neighbours=(before, after))
        _write(folder / "groups" / names[place], text)
    addresses = {group_id: f"groups/{name}" for group_id, name in files.items()}
    _write(folder / "index.html", index_page(view, addresses))
    return folder / "index.html"


def _file_names(groups: Sequence[GroupView]) -> dict[str, str]:
    """Return group id -> file name: the same in every call, and fit for any file system."""
    found = {}
    for group in groups:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", group.group_id).strip("-").lower()[-48:]
        digest = hashlib.sha256(group.group_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        found[group.group_id] = f"{readable}-{digest}.html".lstrip("-")
    return found


def _write(path: Path, text: str) -> None:
    # A lone surrogate, which UTF-8 has no bytes for, is written as `\udc80`.
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
