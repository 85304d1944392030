"""Snapshots of containers' workspaces, kept on the host.

Not here: taking one (`container_link.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from katgym.errors import UsageError
from katgym.sandbox.docker_engine.tree import Patch
from katgym.sandbox.spec import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    layers: tuple[str, ...]
    image: str | None
    patch: Patch


class Snapshots:
    """The snapshots of one backend, and the folder of their contents and of those of images."""

    def __init__(self) -> None:
        self._kept: dict[str, _Snapshot] = {}
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where contents are kept, made when it is first asked for."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="katgym-docker-"))
        return self._folder

    @contextlib.contextmanager
    def spool(self) -> Iterator[Callable[[bytes], tuple[Path, int]]]:
        """Return what keeps contents until `close`: given some, it says in which file and where."""
        path = self.folder / f"{uuid.uuid4().hex}.bin"
        with path.open("wb") as file:

            def keep(content: bytes) -> tuple[Path, int]:
                offset = file.tell()
                file.write(content)
                return path, offset

            yield keep

    def keep(self, spec: SandboxSpec, patch: Patch) -> str:
        """Keep a snapshot; return its id."""
        name = f"snapshot-{uuid.uuid4().hex[:16]}"
        digests = tuple(layer.digest for layer in spec.layers)
        self._kept[name] = _Snapshot(layers=digests, image=spec.image, patch=patch)
        return name

    def find(self, name: str, spec: SandboxSpec) -> Patch:
        """Return a snapshot that fits a spec; `UsageError` if there is none."""
        found = self._kept.get(name)
        if found is None:
            raise UsageError(f"no snapshot {name!r} in this backend; `snapshot()` makes one")
        if (found.layers, found.image) != (tuple(x.digest for x in spec.layers), spec.image):
            raise UsageError(f"snapshot {name!r} was made from other layers or another image")
        return found.patch

    def forget(self, name: str) -> None:
        """Give up a snapshot and the file of its contents."""
        found = self._kept.pop(name, None)
        if found is not None:
            entries = [entry for entry in found.patch.values() if entry is not None]
            for spool in {entry.source for entry in entries if entry.source is not None}:
                spool.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove everything."""
        self._kept.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
