"""Candidates for canaries: where a test module can be given a wrong value, and which.

Not here: canaries as data and their rendering (`katgym_envs.swe.canaries`); which of the candidates
fail on correct code (`making/`).
"""

from katgym_plugin_swe_factory.canaries.find import find_canaries
from katgym_plugin_swe_factory.canaries.near import BaseFailure, NearFinder

__all__ = ["BaseFailure", "NearFinder", "find_canaries"]
