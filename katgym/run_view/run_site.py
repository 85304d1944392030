"""The files of one run's pages: path -> text, the same on a disk and from a server.

    index.html    what it was told, curves, results, and the lists of rollouts and groups
    list.js       the lists' data
    group.html    any group; `group.html#g=NAME` says which
    groups/       the data of each group

Not here: a folder of runs (`folder_site.py`), writing (`static_site.py`), serving (`server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from katgym.run_view.page_frame import data_script
from katgym.run_view.run_view import GroupHead, GroupView, RunView
from katgym.run_view.screens.list_json import group_name, list_json
from katgym.run_view.screens.run_page import group_shell, run_page
from katgym.run_view.trees.group_json import group_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSite:
    """A run's pages."""

    view: RunView
    load: Callable[[GroupHead], GroupView | None]
    """Returns a group with its turns; None for one that has no page."""
    root: str = ""
    """The address of the site's first folder, relative to the pages."""
    has_runs: bool = False
    """Whether the site lists several runs there."""
    with_page: frozenset[str] | None = None
    """Ids of groups that have a page; None: all have one."""

    def text(self, path: str) -> str | None:
        """Return a file that is not of a group; None for a path without one."""
        match path:
            case "index.html":
                return run_page(self.view, root=self.root, has_runs=self.has_runs)
            case "list.js":
                return data_script(list_json(self.view, self.with_page))
            case "group.html":
                return group_shell(self.view, root=self.root)
        return None

    def head_of(self, path: str) -> GroupHead | None:
        """Return the group that a file is of."""
        name = path.removeprefix("groups/").removesuffix(".js")
        by_name = {group_name(head.group_id): head for head in self.view.heads}
        return by_name.get(name) or by_name.get(name.rpartition("-")[0])

    def group_files(self, head: GroupHead) -> Iterator[tuple[str, str]]:
        """Yield path and text of a group's files."""
        group = self.load(head)
        if group is None:
            return
        data, chunks = group_json(group, self.view.token_texts, self.view.reward_range)
        name = group_name(head.group_id)
        yield f"groups/{name}.js", data_script(data)
        for number, chunk in enumerate(chunks):
            yield f"groups/{name}-{number}.js", data_script(chunk)
