"""Generates docs/reference from the docstrings, one page per module.

    python docs/make_reference.py

A module whose optional dependency is not installed is left out, and named.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import pdoc
import pdoc.render

from katgym.errors import MissingDependencyError

PACKAGES = ("katgym", "katgym_envs", "katgym_trainer", "katgym_kernels")
TARGET = Path(__file__).parent / "reference"


def modules() -> list[str]:
    """Return every importable module of ours; private ones and scripts are not reference."""
    found = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        names = [m.name for m in pkgutil.walk_packages(root.__path__, f"{package}.")]
        for name in [package, *names]:
            if ".make_" in name or name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(name)
            except (ModuleNotFoundError, MissingDependencyError) as e:
                print(f"left out: {name} ({e})", file=sys.stderr)
                found.append(f"!{name}")  # pdoc's mark for a module to leave out
                continue
            found.append(name)
    return found


def main() -> None:
    """Write the pages."""
    pdoc.render.configure(docformat="google", footer_text="katgym reference")
    pdoc.pdoc(*modules(), output_directory=TARGET)
    print(f"{TARGET / 'index.html'}")


if __name__ == "__main__":
    main()
