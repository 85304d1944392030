"""A training or evaluation run as static HTML: curves, groups, and every group as one token tree.

Not here: transcripts in the terminal (`katgym.cli.runs.view_command`); curves as PNG (`katgym train
plot`).
"""

from katgym.run_view.pages import write_pages
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
from katgym.run_view.selection import Selection
from katgym.run_view.source import read_run

__all__ = [
    "Band",
    "Checkpoint",
    "GroupView",
    "Panel",
    "RolloutView",
    "RunKind",
    "RunView",
    "Selection",
    "Series",
    "read_run",
    "write_pages",
]
