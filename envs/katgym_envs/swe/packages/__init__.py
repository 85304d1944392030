"""Python packages that tasks are made from: their sdists, fetched and read without running them.

`known.toml` lists those that are known to work. Not here: mutations (`mutation/`), venvs, tasks.
"""

from __future__ import annotations

from katgym_envs.swe.packages.catalogue import KnownPackage, list_packages
from katgym_envs.swe.packages.sdist import Sdist, fetch_sdist
from katgym_envs.swe.packages.sdist_archive import read_sdist
from katgym_envs.swe.packages.source_tree import SourceTree, open_package, open_toy

__all__ = [
    "KnownPackage",
    "Sdist",
    "SourceTree",
    "fetch_sdist",
    "list_packages",
    "open_package",
    "open_toy",
    "read_sdist",
]
