"""A Dockerfile as far as a sandbox without images can honour it.

That is `FROM python:X.Y` (or `python:3`) of this interpreter's version or the distribution of this
machine, WORKDIR, ENV, COPY and ADD of the folder's own files to below the workdir, and `RUN pip
install NAME==VERSION`. Not here: images, which sandbox backend `docker` runs.
"""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from katgym.sandbox.layer import FileEntry, directory_entries

_PIP = re.compile(r"(?:python3? -m )?pip3? install (.+)")
_PIP_FLAGS = ("--no-cache-dir", "--quiet", "-q", "--root-user-action=ignore", "--upgrade")
_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.+!_-]+")
_IGNORED = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"})
"""Of no effect: commands are run one by one, without a network."""


@dataclass(slots=True)
class Recipe:
    """What a sandbox is made from."""

    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    requirements: list[str] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    """Absolute path -> file."""
    is_python: bool = False
    problems: list[str] = field(default_factory=list)
    """Instructions that cannot be honoured, and why."""

    def workspace(self) -> dict[str, bytes | FileEntry]:
        """Return the files, relative to the workdir."""
        return {str(PurePosixPath(p).relative_to(self.workdir)): f for p, f in self.files.items()}


def read_dockerfile(path: Path) -> Recipe:
    """Return what a Dockerfile makes of its folder; `problems` says what it cannot."""
    recipe = Recipe()
    if (path.parent / ".dockerignore").exists():
        recipe.problems.append(".dockerignore is not read")
    for number, line in enumerate(_instructions(path.read_text(encoding="utf-8"))):
        name, _, rest = line.partition(" ")
        try:
            _apply(recipe, name.upper(), rest.strip(), path.parent, is_first=number == 0)
        except ValueError as e:
            recipe.problems.append(f"{line[:80]!r} {e}")
    return recipe


def _instructions(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\s*\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            yield line.strip()


def _apply(recipe: Recipe, name: str, rest: str, folder: Path, *, is_first: bool) -> None:
    """Follow one instruction; `ValueError` says why not."""
    if name == "FROM":
        if not is_first or not _is_here(rest):
            raise ValueError("needs an image")
        recipe.is_python = rest.startswith("python:")
    elif name == "WORKDIR":
        recipe.workdir = str(PurePosixPath(recipe.workdir or "/", _plain(rest)))
    elif name == "ENV":
        pairs = [item.partition("=") for item in shlex.split(_plain(rest))]
        if not all(equals for _, equals, _ in pairs):
            pairs = [rest.partition(" ")]
        recipe.env |= {key: value.strip() for key, _, value in pairs}
    elif name in ("COPY", "ADD"):
        _copy(recipe, shlex.split(_plain(rest)), folder)
    elif name == "RUN":
        for command in rest.split("&&"):
            recipe.requirements += _exact_requirements(command.strip())
    elif (name, rest) != ("USER", "root") and name not in _IGNORED:
        raise ValueError("is not understood")


def _is_here(image: str) -> bool:
    """Return whether this machine's /usr, or its Python, is what an image would bring."""
    name, _, tag = image.partition(":")
    release, *kinds = tag.split("-")
    if name == "python":
        version = [str(number) for number in sys.version_info[:2]]
        asked = release.split(".")[:2]
        return asked == version[: len(asked)] and "alpine" not in kinds
    try:
        told = platform.freedesktop_os_release()
    except OSError:
        return False
    here = {told.get("VERSION_ID"), told.get("VERSION_CODENAME")} - {None}
    return name == told.get("ID") and release in here


def _plain(text: str) -> str:
    if "$" in text or "<<" in text or text.startswith("["):
        raise ValueError("is not understood: a variable, a here-document or a list")
    return text


def _copy(recipe: Recipe, words: list[str], folder: Path) -> None:
    sources = [word for word in words if not word.startswith("--chown=")]
    if any(word.startswith("--") for word in sources) or len(sources) < 2:
        raise ValueError("is not understood")
    target = sources.pop()
    place = PurePosixPath(recipe.workdir or "/", target)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1 or str(place) == recipe.workdir
    for source in sources:
        path = folder / source.lstrip("/")
        if not path.resolve().is_relative_to(folder.resolve()) or not path.exists():
            raise ValueError(f"finds no {source!r} in the folder")
        if path.is_dir():
            found = directory_entries(path, exclude=())
        else:
            entries = directory_entries(path.parent, exclude=())
            found = {path.name if is_folder else "": entries[path.name]}
        recipe.files |= {str(place / name): entry for name, entry in found.items()}


def _exact_requirements(command: str) -> list[str]:
    """Return the packages that a command installs."""
    found = _PIP.fullmatch(command)
    words = [w for w in shlex.split(found[1]) if w not in _PIP_FLAGS] if found else []
    if not words or not all(_PINNED.fullmatch(word) for word in words):
        raise ValueError("runs a command, other than `pip install NAME==VERSION`")
    return words
