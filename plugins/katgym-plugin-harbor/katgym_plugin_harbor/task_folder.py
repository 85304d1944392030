"""A task's folder: task.toml, instruction.md, environment/, solution/, tests/.

Not here: what a Dockerfile says (`dockerfile.py`), playing and verifying (`env.py`, `verifier.py`).
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from katgym.environment.task import SPLITS
from katgym.errors import UsageError
from katgym.sandbox.layer import directory_entries, tree_digest
from katgym_plugin_harbor.dockerfile import Recipe, read_dockerfile
from katgym_plugin_harbor.task_config import TaskConfig

CONFIG_FILE = "task.toml"
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_IMAGE_HINT = "an image can hold it: sandbox=docker and image=NAME, as docs/guides/harbor.md says"


@dataclass(frozen=True)
class TaskFolder:
    """One task."""

    path: Path
    image: str = ""
    """Pattern of the images that hold the tasks' environments, `{task}` for the name; "": none."""
    has_images: bool = False
    """Whether the sandboxes run images."""

    @property
    def name(self) -> str:
        """The folder's name, which is the task's id."""
        return self.path.name

    @cached_property
    def config(self) -> TaskConfig:
        """What task.toml says."""
        return TaskConfig.read(self.path / CONFIG_FILE)

    @property
    def split(self) -> str:
        """`[metadata] split`, or "test"."""
        split = self.config.metadata.get("split")
        return split if split in SPLITS else "test"

    @property
    def image_name(self) -> str | None:
        """The image that the sandbox is made of; None without images."""
        if not self.has_images:
            return None
        return self.config.environment.docker_image or self.image.format(task=self.name) or None

    @cached_property
    def instruction(self) -> str:
        """instruction.md without the canary lines on its top."""
        lines = (self.path / "instruction.md").read_text(encoding="utf-8").split("\n")
        while lines and _CANARY.fullmatch(lines[0].strip()):
            lines.pop(0)
        return "\n".join(lines).strip()

    @cached_property
    def sha256(self) -> str:
        """Digest of all its files."""
        return tree_digest(directory_entries(self.path))

    @cached_property
    def recipe(self) -> Recipe:
        """What the environment is made from; with an image that is its workdir alone."""
        environment, dockerfile = self.config.environment, self.path / "environment" / "Dockerfile"
        recipe = read_dockerfile(dockerfile) if dockerfile.is_file() else Recipe()
        recipe.workdir = environment.workdir or recipe.workdir
        if self.image_name is not None:
            files = {}
            if not dockerfile.is_file() and dockerfile.parent.is_dir():
                found = directory_entries(dockerfile.parent, exclude=())
                files = {f"{recipe.workdir}/{name}": entry for name, entry in found.items()}
            return Recipe(workdir=recipe.workdir, files=files)
        if not dockerfile.is_file():
            recipe.problems.append("there is no environment/Dockerfile")
        outside = [p for p in recipe.files if not PurePosixPath(p).is_relative_to(recipe.workdir)]
        recipe.problems += [f"{p!r} is copied to outside of the workdir" for p in outside]
        recipe.problems = [f"environment/Dockerfile: {why}" for why in recipe.problems]
        return recipe

    @cached_property
    def problems(self) -> Sequence[str]:
        """Why the task cannot be played here; empty if it can."""
        found = [*self.config.problems, *self.recipe.problems]
        if not self.has_images and self.recipe.problems:
            found.append(_IMAGE_HINT)
        if self.recipe.workdir in ("", "/"):
            found.append("no workdir below / is named, by WORKDIR or in task.toml")
        compose = [*self.path.glob("*/docker-compose.y*ml")]
        found += [f"{path.relative_to(self.path)} needs Docker Compose" for path in compose]
        if self.config.verifier.is_separate and (self.path / "tests" / "Dockerfile").exists():
            found.append("tests/Dockerfile makes another image for the verifier")
        for name in ("instruction.md", "tests/test.sh"):
            if not (self.path / name).is_file():
                found.append(f"there is no {name}")
        if [*self.path.glob("*/.harborignore")]:
            found.append(".harborignore is not read")
        return found

    def to_tar(self, part: str) -> bytes:
        """Return folder "tests" or "solution" as a tar file; equal files give equal bytes."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, entry in sorted(directory_entries(self.path / part).items()):
                info = tarfile.TarInfo(name)
                info.mode = 0o755 if entry.is_executable or name.endswith(".sh") else 0o644
                if entry.link_target is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, entry.link_target
                info.size = len(entry.content)
                tar.addfile(info, io.BytesIO(entry.content))
        return buffer.getvalue()


def read_folders(path: Path, *, image: str = "", has_images: bool = False) -> list[TaskFolder]:
    """Return the tasks of a folder of tasks, by name, or the one task that a folder is."""
    if not path.is_dir():
        raise UsageError(f"no such folder of tasks: {str(path)!r}")
    is_task = (path / CONFIG_FILE).is_file()
    places = [path] if is_task else sorted(p.parent for p in path.glob(f"*/{CONFIG_FILE}"))
    if not places:
        raise UsageError(f"{str(path)!r} holds no task: no {CONFIG_FILE}, nor folders with one")
    return [TaskFolder(p.resolve(), image=image, has_images=has_images) for p in places]
