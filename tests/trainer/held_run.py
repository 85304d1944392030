"""Runs that stand still behind a step, so that what is done to them there is done in the middle.

A tracker does it, as a plugin would bring one: a run finds it in a folder on its PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path

_PLUGIN = """
import time
from pathlib import Path

import pluggy


class Hold:
    def __init__(self, folder, *, gates):
        self.gates = Path(gates)

    def start(self, config):
        pass

    def log(self, step, metrics):
        while (self.gates / f"hold-{step}").exists():
            time.sleep(0.02)

    def finish(self):
        pass


@pluggy.HookimplMarker("katgym")
def katgym_register_trackers(register):
    register("hold", Hold, description="Stands still.")
"""


def hold(folder: Path, *steps: int) -> str:
    """Return what a run's file says so that it stands still once it has told of these steps.

    It goes on from each when `let_go` is called.
    """
    (folder / "kp_hold.py").write_text(_PLUGIN)
    info = folder / "katgym_plugin_hold-1.0.dist-info"
    info.mkdir(exist_ok=True)
    name = "Metadata-Version: 2.1\nName: katgym-plugin-hold\nVersion: 1.0\n"
    (info / "METADATA").write_text(name)
    (info / "entry_points.txt").write_text("[katgym]\nhold = kp_hold\n")
    for step in steps:
        (folder / f"hold-{step}").touch()
    return f'\n[[track]]\nname = "hold"\ngates = "{folder}"\n'


def let_go(folder: Path, step: int) -> None:
    """Let a run go on from a step, now and when it comes there again."""
    (folder / f"hold-{step}").unlink()
