"""Bugs put into Python modules on purpose, by small changes of their syntax tree. See README.md.

Not here: whether a test notices one (`making/`).
"""

from katgym_envs.swe.mutation.mutate import find_sites, mutate, mutate_files
from katgym_envs.swe.mutation.operators import OPERATORS
from katgym_envs.swe.mutation.site import Site

__all__ = ["OPERATORS", "Site", "find_sites", "mutate", "mutate_files"]
