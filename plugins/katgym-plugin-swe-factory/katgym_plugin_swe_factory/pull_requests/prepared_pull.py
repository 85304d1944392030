"""A pull request that passed the filters, with everything a trial of it needs.

Not here: the filters (`pull_filters.py`), the trial (`pull_trial.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_plugin_swe_factory.history.pull_diff import PullDiff
from katgym_plugin_swe_factory.history.tracker_dump import PullRequest, Repository
from katgym_plugin_swe_factory.pull_requests.import_config import TrialConfig
from katgym_plugin_swe_factory.pull_requests.pull_states import PullStates


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPull:
    """One pull request; see the module."""

    pull: PullRequest
    repository: Repository
    diff: PullDiff
    states: PullStates
    statement: str
    hints: str
    recipe: EnvironmentRecipe
    patch: str
    """The gold patch."""
    test_patch: str
    split: str = "train"

    @property
    def instance_id(self) -> str:
        """Return its id, made as SWE-bench makes them: `owner__name-12`."""
        name = self.repository.full_name.replace("/", "__")
        return f"{re.sub(r'[^A-Za-z0-9._+-]', '-', name)}-{self.pull.number}"

    @property
    def url(self) -> str:
        """Return where it can be read."""
        path = f"{self.repository.full_name}/pull/{self.pull.number}"
        return self.pull.html_url or f"https://github.com/{path}"

    def key(self, config: TrialConfig) -> str:
        """Return a digest of everything its trial depends on, but for the machine."""
        known: Mapping[str, Any] = {
            "id": self.instance_id,
            "base": self.diff.range.base,
            "gold": self.diff.range.gold,
            "statement": self.statement,
            "hints": self.hints,
            "recipe": msgspec.to_builtins(self.recipe),
            "workspace": tree_digest(self.states.workspace),
            "hidden": tree_digest(self.states.hidden_files),
            "trial": msgspec.to_builtins(config),
            "split": self.split,
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]
