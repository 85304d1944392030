"""Wrong-value canaries: small changes to a test module after which its tests must fail.

See README.md. Not here: which of them do fail on correct code (`making/`), when they run
(`grading/`).
"""

from katgym_envs.swe.canaries.canary import Canary, Role
from katgym_envs.swe.canaries.find import find_canaries
from katgym_envs.swe.canaries.near import BaseFailure, NearFinder
from katgym_envs.swe.canaries.rename import Renamed, rename_tests
from katgym_envs.swe.canaries.render import render, render_renamed

__all__ = [
    "BaseFailure",
    "Canary",
    "NearFinder",
    "Renamed",
    "Role",
    "find_canaries",
    "rename_tests",
    "render",
    "render_renamed",
]
