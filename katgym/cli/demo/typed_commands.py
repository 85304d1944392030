"""Steps of demos: copied files, commands of `katgym` that one could type, pages shown.

Not here: which commands (`demo_command.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser
from importlib import resources
from pathlib import Path

from katgym import console


class CommandFailed(Exception):
    """A command ended with an exit code other than 0, which is `args[0]`."""


def copy_files(package: str, folder: Path, *names: str) -> None:
    """Copy files of a package into a folder, where a user can read and change them.

    One that is there stays: it may have been changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            with resources.as_file(resources.files(package) / name) as source:
                shutil.copyfile(source, folder / name)


def run_command(*arguments: str) -> None:
    """Show and run `katgym ARGUMENTS`; raises `CommandFailed`."""
    from katgym.cli.main import main  # here, as it imports the commands

    typed = f"\n$ katgym {shlex.join(arguments)}"
    console.stdout.print(typed, style="bold", soft_wrap=True)
    if code := main(list(arguments)):
        raise CommandFailed(code)


def show_page(page: Path) -> None:
    """Print a page's URL; open it in a browser where there is a terminal with a display."""
    url = page.absolute().as_uri()
    console.stdout.print(url, soft_wrap=True)
    displays = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    has_display = sys.platform == "darwin" or any(displays)
    if sys.stdout.isatty() and has_display:
        webbrowser.open(url)
