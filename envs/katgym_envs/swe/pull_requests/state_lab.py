"""A lab for one state of a repository: its files with links and modes, and its own recipe.

Not here: running (`making/lab.py`), which states there are (`pull_states.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

from katgym.sandbox import SandboxBackend, SandboxLimits, layer_store
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.making.lab import Lab
from katgym_envs.swe.packages import KnownPackage, SourceTree
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.test_run import can_be_warm, test_spec

_MEMORY_BYTES = 2 << 30


class StateLab(Lab):
    """Sandboxes with one state of a repository."""

    def __init__(
        self,
        name: str,
        files: Mapping[str, FileEntry],
        recipe: EnvironmentRecipe,
        backend: SandboxBackend,
        *,
        num_sandboxes: int = 1,
    ) -> None:
        package = KnownPackage(
            name=name, version="", source=(), tests=(), test_roots=(),
            python_path=recipe.python_path, requirements=recipe.requirements,
        )  # fmt: skip
        regular = {p: f.content for p, f in files.items() if f.link_target is None}
        super().__init__(
            SourceTree(package=package, files=regular), backend, num_sandboxes=num_sandboxes
        )
        self._entries = files
        self._recipe = recipe

    async def __aenter__(self) -> Self:
        recipe = self._recipe
        python = None
        if recipe.kind == "venv":
            python = await asyncio.to_thread(ensure_venv, recipe.requirements)
        self.requirements = recipe.requirements
        layer = await asyncio.to_thread(layer_store().add_files, self._entries)
        self._spec = test_spec(
            Workspace(layer=layer, python=python),
            recipe,
            limits=SandboxLimits(memory_bytes=_MEMORY_BYTES, max_open_files=1024),
            is_warm=await can_be_warm(self._backend),
        )
        return self
