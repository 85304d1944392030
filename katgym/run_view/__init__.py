"""Runs as pages, from a server or on a disk: lists, curves, and every group as one token tree.

Not here: transcripts in the terminal (`katgym.cli.runs.view_command`); curves as PNG (`katgym train
plot`).
"""

from katgym.run_view.folder_site import FolderSite
from katgym.run_view.reading.selection import Selection
from katgym.run_view.reading.source import read_run
from katgym.run_view.run_view import (
    Band,
    Checkpoint,
    GroupView,
    Panel,
    RolloutView,
    RunKind,
    RunView,
    Series,
)
from katgym.run_view.server import ViewServer
from katgym.run_view.static_site import write_folder_pages, write_pages

__all__ = [
    "Band",
    "Checkpoint",
    "FolderSite",
    "GroupView",
    "Panel",
    "RolloutView",
    "RunKind",
    "RunView",
    "Selection",
    "Series",
    "ViewServer",
    "read_run",
    "write_folder_pages",
    "write_pages",
]
