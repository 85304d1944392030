"""A lab for one state of a repository: its files with links and modes, and its own recipe.

Not here: running (`making/lab.py`), which states there are (`pull_states.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from katgym.sandbox import SandboxBackend, SandboxLimits
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.venvs import ensure_venv
from katgym.system.concurrency import Gate
from katgym_envs.swe.packages import KnownPackage, SourceTree
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_plugin_swe_factory.studies.lab import PackageLab


class StateLab(PackageLab):
    """Sandboxes with one state of a repository."""

    limits = SandboxLimits(memory_bytes=2 << 30, max_open_files=1024)

    def __init__(
        self,
        name: str,
        files: Mapping[str, FileEntry],
        recipe: EnvironmentRecipe,
        backend: SandboxBackend,
        *,
        num_sandboxes: int = 1,
        timeout_s: float = 60.0,
        gate: Gate | None = None,
    ) -> None:
        package = KnownPackage(
            name=name, version="", source=(), tests=(), test_roots=(),
            python_path=recipe.python_path, requirements=recipe.requirements,
        )  # fmt: skip
        regular = {p: f.content for p, f in files.items() if f.link_target is None}
        super().__init__(
            SourceTree(package=package, files=regular),
            backend,
            num_sandboxes=num_sandboxes,
            timeout_s=timeout_s,
            gate=gate,
        )
        self._state = files
        self._recipe = recipe

    def _entries(self) -> Mapping[str, bytes | FileEntry]:
        return self._state

    async def _environment(self) -> tuple[EnvironmentRecipe, str | None]:
        if self._recipe.kind != "venv":
            return self._recipe, None
        return self._recipe, await asyncio.to_thread(ensure_venv, self._recipe.requirements)
