"""Writes pages into a folder, where they need no server: of one run, or of all below a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from katgym.errors import UsageError
from katgym.run_view.folder_site import FolderSite
from katgym.run_view.page_frame import site_assets
from katgym.run_view.reading.selection import Selection
from katgym.run_view.reading.source import read_run
from katgym.run_view.run_site import RunSite
from katgym.run_view.run_view import RunView
from katgym.system import explain_os_error, write_atomically

_MARK = ".katgym-view"
"""File that says that a folder's pages are ours and may be replaced."""


def write_pages(view: RunView, folder: Path) -> Path:
    """Write the pages of a run into `folder` and return the first one's path.

    Groups without turns in the view have no page, and the first page says how many. Pages of an
    earlier call are replaced. Raises `UsageError` for a folder of anything else.
    """
    return _write(_run_files(_site(view)), folder)


def write_folder_pages(site: FolderSite, folder: Path, selection: Selection) -> Path:
    """Write the pages of all runs of a site, as `write_pages` does.

    selection: the groups of each run that have a page.
    """
    return _write(_folder_files(site, selection), folder)


def _site(view: RunView, *, root: str = "", has_runs: bool = False) -> RunSite:
    by_id = {group.group_id: group for group in view.groups}
    num_left = view.num_groups - len(by_id)
    if num_left:
        text = (
            f"{num_left} of {view.num_groups} groups have no page here and stand in the lists only:"
            f" shown are the newest, the best and the worst. --limit {view.num_groups} writes all;"
            " `katgym view` without --html serves all."
        )
        view = replace(view, notes=[*view.notes, text])
    return RunSite(
        view=view,
        load=lambda head: by_id.get(head.group_id),
        root=root,
        has_runs=has_runs,
        with_page=frozenset(by_id),
    )


def _run_files(site: RunSite) -> Iterator[tuple[str, str]]:
    if not site.has_runs:
        yield from site_assets().items()
    for path in ("list.js", "group.html"):
        yield path, site.text(path) or ""
    for head in site.view.heads:
        yield from site.group_files(head)
    yield "index.html", site.text("index.html") or ""


def _folder_files(site: FolderSite, selection: Selection) -> Iterator[tuple[str, str]]:
    yield from site_assets().items()
    for run in site.readable_runs():
        view = read_run(run.folder, selection, tokenizer=site.tokenizer)
        view = replace(view, name=run.name)
        for path, text in _run_files(_site(view, root="../../", has_runs=True)):
            yield f"runs/{run.slug}/{path}", text
    for path in ("runs.js", "compare.html", "curves.html", "leaderboard.html", "index.html"):
        if (content := site.text(path)) is not None:
            yield path, content


def _write(files: Iterator[tuple[str, str]], folder: Path) -> Path:
    """Write files, and remove those of an earlier call that are not among them."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UsageError(
            f"folder {str(folder)!r} is not empty and holds no pages of katgym view; name another"
            " with --out"
        )
    written = {folder / _MARK}
    with explain_os_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
        for name, text in files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # A lone surrogate, which UTF-8 has no bytes for, is written as `\\udc80`.
            write_atomically(path, text.encode("utf-8", "backslashreplace"))
            written.add(path)
        for pattern in ("*.html", "*.js"):
            for path in folder.rglob(pattern):
                if path not in written:
                    path.unlink()
    return folder / "index.html"
