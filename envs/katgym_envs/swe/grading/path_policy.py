"""Policy for a patch's paths: graded, dropped, or the whole patch is invalid.

    judged = judge_paths(changes, base=files, rules=PathRules(hidden=..., protected=...))

Dropped: whatever could decide how tests are found, imported or run, and what is no part of the
product: the patch's own tests, documents, what programs leave behind; and what is new and cannot be
graded. It is a matter of hygiene; what is left is still untrusted (`rounds.py` deals with that).
Refused: changes of the base state's files that cannot be graded. Not here: reading and applying
patches (`katgym_envs.swe.patching`).
"""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching import is_artefact

MAX_FILE_BYTES = 8 << 20
MAX_PATCH_BYTES = 32 << 20
MAX_CHANGES = 2_000
_MAX_PATH_BYTES = 1024

_TEST_CONFIG = frozenset(
    {
        "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
        "pyproject.toml", "setup.py", ".coveragerc", "noxfile.py", "pyvenv.cfg",
    }
)  # fmt: skip
_START_UP = frozenset({"sitecustomize.py", "usercustomize.py"})
_BYTE_CODE = (".pyc", ".pyo")
_NATIVE = (".so", ".pyd", ".dll", ".dylib")
_TEST_PACKAGES = frozenset(
    {
        "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup",
        "tomli", "colorama", "xdist", "hypothesis", "unittest", "conftest", "site", "katgym",
        "typing_extensions", "attr", "attrs", "mock", "nose", "pkg_resources", "setuptools",
    }
)  # fmt: skip
_METADATA = (".dist-info", ".egg-info", ".egg-link")
_TEST_NAMES = ("test_*.py", "*_test.py", "tests.py")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_DOCUMENTS = (".md", ".rst", ".markdown")
_DOCUMENT_FOLDERS = ("doc", "docs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """What a task says about paths."""

    hidden: Collection[str] = ()
    """Paths of the grader's own files."""
    protected: Collection[str] = ()
    """Paths, folders or glob patterns whose changes are dropped."""
    allowed: Collection[str] = ()
    """Paths whose changes are graded although they are test infrastructure: gold changes them."""
    gold: Collection[str] = ()
    """Paths that gold changes: whatever their names, they are part of the product."""
    source_roots: Collection[str] = ()
    """Folders or files that hold the product."""
    python_path: tuple[str, ...] = (".",)
    requirements: Collection[str] = ()
    """Top-level modules of the task's environment; a workspace may not shadow them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPaths:
    """Changes sorted by what becomes of them."""

    kept: Mapping[str, FileEntry | None]
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Path -> reason."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Path -> reason; one is enough to refuse the patch."""


def judge_paths(
    changes: Mapping[str, FileEntry | None],
    *,
    base: Mapping[str, bytes],
    rules: PathRules,
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> JudgedPaths:
    """Return what becomes of each change; `base` holds the base state's files.

    unreadable: paths of the base state whose new state nobody can read -> why.
    """
    rejected: dict[str, str] = {}
    kept: dict[str, FileEntry | None] = {}
    dropped: dict[str, str] = {}
    base_modules = {_module_below(p, root) for p in base for root in rules.python_path} - {None}
    for path, entry in {**changes, **dict.fromkeys(unreadable)}.items():
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            rejected[path] = "not a path below the repository"
            continue
        is_allowed = path in rules.allowed
        why = "" if is_allowed else _infrastructure(path, rules)
        why = why or _no_product(path, base, rules) or _shadow(path, rules, base_modules)
        reason = unreadable.get(path) or _refusal(path, entry)
        is_new = path not in base and path not in unreadable
        if why or (reason and is_new):
            dropped[path] = why or reason
        elif reason:
            rejected[path] = reason
        elif entry is not None and entry.link_target is not None and not is_allowed:
            dropped[path] = "a link"
        else:
            kept[path] = entry
    return _within_limits(kept, base, dropped, rejected)


def _within_limits(
    changes: Mapping[str, FileEntry | None],
    base: Collection[str],
    dropped: Mapping[str, str],
    rejected: Mapping[str, str],
) -> JudgedPaths:
    """Return changes of the base state first, then new files while there is room: Python's first.

    Refused are changes of the base state that take more room than there is.
    """
    dropped, rejected = dict(dropped), dict(rejected)
    kept: dict[str, FileEntry | None] = {}
    beyond: Counter[str] = Counter()
    room = MAX_PATCH_BYTES
    order = sorted(changes, key=lambda p: (p not in base, not p.endswith(".py"), p.count("/"), p))
    for path in order:
        entry = changes[path]
        size = 0 if entry is None else len(entry.content)
        reason = f"larger than {MAX_FILE_BYTES} bytes" if size > MAX_FILE_BYTES else ""
        is_full = len(kept) >= MAX_CHANGES or size > room
        if path in base and (reason or is_full):
            rejected["" if is_full else path] = reason or (
                f"more than {MAX_CHANGES} files or {MAX_PATCH_BYTES} bytes are changed"
            )
        elif reason:
            dropped[path] = reason
        elif is_full:
            beyond[path.rpartition("/")[0]] += 1
        else:
            kept[path] = entry
            room -= size
    limits = f"the {MAX_CHANGES} files, or {MAX_PATCH_BYTES} bytes, of a patch"
    for folder, num in beyond.items():
        dropped[f"{folder}/" if folder else "./"] = f"{num} new files beyond {limits}"
    in_order = {path: kept[path] for path in changes if path in kept}
    return JudgedPaths(kept=in_order, dropped=dropped, rejected=rejected)


def _refusal(path: str, entry: FileEntry | None) -> str:
    """Return why a change cannot be graded wherever it is, or nothing."""
    parts = path.split("/")
    if any(part.rstrip(" .").casefold() in (".git", "git~1") for part in parts):
        return "git's own directory"
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "the name is not UTF-8"
    if size > _MAX_PATH_BYTES:
        return "the name is too long"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        return "a control character in the name"
    if entry is None or entry.link_target is None:
        return ""
    target, depth = entry.link_target, len(parts) - 1
    if target.startswith("/") or not target or "\0" in target:
        return "a link out of the repository"
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return "a link out of the repository"
        if part.casefold() == ".git":
            return "a link into git's own directory"
    return ""


def _infrastructure(path: str, rules: PathRules) -> str:
    """Return why a change is test infrastructure, or nothing."""
    parts = path.split("/")
    name = parts[-1].casefold()
    if _is_below(path, rules.hidden) or any(_is_below(h, [path]) for h in rules.hidden):
        return "in the place of a hidden file"
    if any(path == p or _is_below(path, [p]) or fnmatch.fnmatch(path, p) for p in rules.protected):
        return "protected by the task"
    if name == "conftest.py" or "conftest" in parts:
        return "pytest runs it"
    if name in _TEST_CONFIG:
        return "configures the tests or the build"
    if name in _START_UP or name.endswith(".pth") or parts[-1].startswith("__editable__"):
        return "runs when Python starts"
    if name.endswith(_BYTE_CODE) or "__pycache__" in parts:
        return "byte code"
    if name.endswith(_NATIVE) or ".so." in name:
        return "a native module"
    if any(part.casefold().endswith(_METADATA) for part in parts):
        return "metadata of an installed package"
    return ""


def _no_product(path: str, base: Collection[str], rules: PathRules) -> str:
    """Return why a change is in no round although it decides nothing, or nothing.

    A file of the base state that is left out keeps its content of there.
    """
    if path in rules.gold:
        return ""
    if is_artefact(path):
        return "left behind by a program"
    *folders, name = path.casefold().split("/")
    is_test = any(fnmatch.fnmatchcase(name, pattern) for pattern in _TEST_NAMES)
    if not _TEST_FOLDERS.isdisjoint(folders):
        is_test |= path not in base or not _is_below(path, rules.source_roots)
    if is_test:
        return "a test, by its name or folder: the change is in no round"
    if name.endswith(_DOCUMENTS) or (folders and folders[0] in _DOCUMENT_FOLDERS):
        return "a document: the change is in no round"
    return ""


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _shadow(path: str, rules: PathRules, base_modules: Collection[str | None]) -> str:
    """Return why a change adds a module that would be imported instead of a foreign one."""
    for root in rules.python_path:
        module = _module_below(path, root)
        if module is None or module in base_modules:
            continue
        if module in sys.stdlib_module_names:
            return f"shadows {module!r} of the standard library"
        if module in _TEST_PACKAGES or module in rules.requirements:
            return f"shadows the installed {module!r}"
    # Folders of tests are put on sys.path by pytest, so a name there can shadow as well.
    folder = path.rpartition("/")[0]
    hidden_folders = {hidden.rpartition("/")[0] for hidden in rules.hidden}
    for hidden_folder in hidden_folders:
        module = _module_below(path, hidden_folder or ".")
        if module is not None and (module in sys.stdlib_module_names or module in _TEST_PACKAGES):
            return f"shadows {module!r} for the tests in {hidden_folder or folder or '.'!r}"
    return ""


def _module_below(path: str, root: str) -> str | None:
    """Return the top-level name that `path` defines for imports from `root`, or None."""
    root = root.strip("./")
    if root and not path.startswith(root + "/"):
        return None
    below = path[len(root) + 1 :] if root else path
    first, slash, _ = below.partition("/")
    name = first if slash else first.partition(".")[0]
    is_module = bool(slash) or first.endswith((".py", ".pyc", ".so", ".pyd"))
    return name if is_module and name.isidentifier() else None
