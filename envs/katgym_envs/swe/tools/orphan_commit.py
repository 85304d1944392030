"""Gives a workspace one commit without a parent, made in a sandbox and kept as a layer.

So `git diff` and `git stash` work for an agent, and no history holds the answer. The same workspace
always has the same commit. Not here: what changed (`Sandbox.diff`; git is never asked).
"""

from __future__ import annotations

import asyncio
import os
import re

from katgym.sandbox import Layer, SandboxBackend, SandboxSpec, layer_store
from katgym.sandbox.layer import FileEntry

_COMMAND = """set -e
git init -q -b main .
git config user.name agent; git config user.email agent@localhost; git config gc.auto 0
rm -rf .git/hooks .git/description .git/info
git add -A -f .
git commit -q --no-gpg-sign -m 'base state'
"""
_DATE = "2020-01-01T00:00:00Z"
_ENV = {
    "GIT_AUTHOR_DATE": _DATE,
    "GIT_COMMITTER_DATE": _DATE,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


async def orphan_commit_layer(backend: SandboxBackend, workspace: Layer) -> Layer | None:
    """Return a layer with `.git` for a workspace; None where the sandbox has no git.

    The first call for a workspace runs git in a sandbox, later ones find the layer on disk.
    """
    store = layer_store()
    note = store.root / f".git-of-{workspace.digest}"
    if note.is_file():
        digest = note.read_text(encoding="ascii").strip()
        known = store.get(digest) if re.fullmatch(r"[0-9a-f]{64}", digest) else None
        if known is not None:
            return known
    async with await backend.create(SandboxSpec(layers=(workspace,))) as sandbox:
        result = await sandbox.exec(_COMMAND, env=_ENV)
        if not result.ok:
            return None
        diff = await sandbox.diff()
    files = {
        change.path: FileEntry(content=change.content)
        for change in diff
        if change.content is not None and change.path.startswith(".git/")
    }
    layer = await asyncio.to_thread(store.add_files, files)
    scratch = note.with_name(f"{note.name}.{os.getpid()}")
    scratch.write_text(layer.digest, encoding="ascii")
    scratch.replace(note)
    return layer
