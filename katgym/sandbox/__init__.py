"""Sandboxes: where untrusted commands run, behind one interface for every backend.

    backend = katgym.sandbox.backend("local")
    layer = katgym.sandbox.layer_store().add_files({"hello.py": b"print('hi')\\n"})
    async with await backend.create(SandboxSpec(layers=(layer,))) as sandbox:
        result = await sandbox.exec(["python3", "hello.py"])

Under asyncio; `blocking.py` is for code without, `shared.py` for envs. Not here: the
grader and the tools that use one (`katgym_envs.swe`).
"""

from katgym.sandbox.backends import backend
from katgym.sandbox.base import (
    Enforcement,
    ExecResult,
    SandboxError,
    SandboxUnavailableError,
)
from katgym.sandbox.changes import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.layer import Layer, LayerStore, layer_store
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.shared import close_shared_backends, shared_backend
from katgym.sandbox.spec import SandboxSpec

__all__ = [
    "ChangeKind",
    "Enforcement",
    "ExecResult",
    "FileChange",
    "Layer",
    "LayerStore",
    "Sandbox",
    "SandboxBackend",
    "SandboxError",
    "SandboxLimits",
    "SandboxSpec",
    "SandboxUnavailableError",
    "WorkspaceDiff",
    "backend",
    "close_shared_backends",
    "layer_store",
    "shared_backend",
]
