"""Wrong-value canaries: small changes to a test module after which its tests must fail.

See README.md. Not here: finding them (distribution `katgym-plugin-swe-factory`), when they run
(`grading/`).
"""

from katgym_envs.swe.canaries.canary import Canary, Role
from katgym_envs.swe.canaries.rename import Renamed, rename_tests
from katgym_envs.swe.canaries.render import render

__all__ = ["Canary", "Renamed", "Role", "rename_tests", "render"]
