"""Bugs put into Python modules on purpose, by small changes of their syntax tree. See README.md.

Not here: whether a test notices one (`katgym_plugin_swe_factory.making`).
"""

from katgym_plugin_swe_factory.mutation.mutate import find_sites, mutate
from katgym_plugin_swe_factory.mutation.operators import OPERATORS
from katgym_plugin_swe_factory.mutation.site import Site

__all__ = ["OPERATORS", "Site", "find_sites", "mutate"]
