"""Environment of a pull request's tests: given by the user, or read off the repository.

A recipe file is JSON; a pull request without a recipe of its own gets "default":

    {"default": {"requirements": ["pytest==9.2.0", "attrs==25.1.0"], "python_path": ["src"]},
     "pulls": {"12": {"kind": "image", "image": "sha256:3f..."}},
     "files": {"src/words/_version.py": "version = '0'\\n"}}

"files" are put into the workspace where the repository lacks them: what a build would make. Without
any recipe, there is pytest alone, or, if that is allowed, what `pyproject.toml` and `setup.cfg`
declare; nothing of the repository is run, but installing what it names runs others' build code.
Not here: making the venv (`katgym.sandbox.venvs`).
"""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym_envs.swe.packages.catalogue import PYTEST
from katgym_envs.swe.patching import is_git_path
from katgym_envs.swe.row import EnvironmentRecipe

_TEST_EXTRAS = ("test", "tests", "testing", "dev")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class RecipeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's shape."""

    default: EnvironmentRecipe | None = None
    pulls: dict[str, EnvironmentRecipe] = {}
    files: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """Which recipe a pull request gets."""

    default: EnvironmentRecipe | None = None
    by_pull: Mapping[int, EnvironmentRecipe] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    """Of pull requests without a recipe, besides pytest."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of files that a build makes, and the repository does not hold."""
    is_declared_installed: bool = False
    """Those also get what the repository declares."""

    def of(self, number: int, files: Mapping[str, bytes]) -> EnvironmentRecipe:
        """Return the recipe of a pull request; `files` are those of its base state."""
        given = self.by_pull.get(number) or self.default
        if given is not None:
            return given
        found = (*self.requirements, *(find_declared(files) if self.is_declared_installed else ()))
        return recipe_of_layout(files, found)


def read_recipes(path: Path) -> Recipes:
    """Return the recipes of a file; `UsageError` names the field that does not fit."""
    try:
        found = msgspec.convert(json.loads(path.read_bytes()), RecipeFile)
    except OSError as e:
        raise UsageError(f"cannot read {str(path)!r}: {e.strerror}") from e
    except (ValueError, RecursionError, msgspec.ValidationError) as e:
        raise UsageError(f"{str(path)!r} holds no recipes: {e}") from e
    bad = [name for name in found.pulls if not name.isdecimal()]
    if bad:
        raise UsageError(f"{str(path)!r}: 'pulls' is keyed by numbers, got {bad[0]!r}")
    for name in found.files:
        if is_git_path(name) or name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
            raise UsageError(f"{str(path)!r}: files are named below the workspace, got {name!r}")
    for name, recipe in (("default", found.default), *found.pulls.items()):
        if recipe is not None:
            if recipe.kind not in ("venv", "image"):
                raise UsageError(
                    f"{str(path)!r}: kind of {name!r} is 'venv' or 'image', got {recipe.kind!r}"
                )
            if (recipe.kind == "image") != bool(recipe.image):
                raise UsageError(
                    f"{str(path)!r}: {name!r} needs an image if, and only if, kind is 'image'"
                )
    by_pull = {int(name): recipe for name, recipe in found.pulls.items()}
    files = {name: text.encode() for name, text in found.files.items()}
    return Recipes(default=found.default, by_pull=by_pull, files=files)


def recipe_of_layout(files: Mapping[str, bytes], requirements: Iterable[str]) -> EnvironmentRecipe:
    """Return a venv's recipe; imports come from `src` if there is one, and from the top."""
    found = {_normal(r): r for r in reversed(list(requirements))}  # the first of a name counts
    has_pytest = "pytest" in found
    is_src = any(path.startswith("src/") and path.endswith(".py") for path in files)
    return EnvironmentRecipe(
        requirements=(*found.values(),) if has_pytest else (PYTEST, *found.values()),
        python_path=("src", ".") if is_src else (".",),
    )


def find_declared(files: Mapping[str, bytes]) -> list[str]:
    """Return the requirements of a project and of its extras and groups for tests.

    In whatever version is newest: name versions of their time where that matters.
    """
    names, found = _from_pyproject(files.get("pyproject.toml", b""))
    more_names, more = _from_setup_cfg(files.get("setup.cfg", b""))
    own = names | more_names
    kept: dict[str, str] = {}
    for text in (*found, *more):
        name = _normal(text)
        # pip would take these for an address or a file.
        place = text.split(";")[0].strip().lower()
        if set("@/\\") & set(place) or place.endswith((".whl", ".zip", ".gz", ".bz2", ".xz")):
            continue
        # Plugins are not loaded, pytest is pinned, and the project itself is the workspace.
        if name and not name.startswith("pytest") and name not in own:
            kept.setdefault(name, text.strip())
    return list(kept.values())


def _from_pyproject(data: bytes) -> tuple[set[str], list[str]]:
    try:
        table = tomllib.loads(data.decode("utf-8", "replace"))
    except tomllib.TOMLDecodeError:  # a guess: what cannot be read tells nothing
        return set(), []
    project, groups = _table(table, "project"), _table(table, "dependency-groups")
    extras = _table(project, "optional-dependencies")
    lists = [project.get("dependencies")]
    lists += [source.get(name) for source in (extras, groups) for name in _TEST_EXTRAS]
    texts = [t for found in lists if isinstance(found, list) for t in found if isinstance(t, str)]
    return {_normal(str(project.get("name", "")))}, texts


def _from_setup_cfg(data: bytes) -> tuple[set[str], list[str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(data.decode("utf-8", "replace"))
    except configparser.Error:
        return set(), []
    texts = parser.get("options", "install_requires", fallback="").splitlines()
    for name in _TEST_EXTRAS:
        texts += parser.get("options.extras_require", name, fallback="").splitlines()
    name = parser.get("metadata", "name", fallback="")
    return {_normal(name)}, [t for t in texts if t.strip() and not t.strip().startswith("#")]


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _normal(requirement: str) -> str:
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""
