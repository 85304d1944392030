"""Compares what an episode left with what it should have left; trusts nothing the agent touched.

The list of files comes from the sandbox's backend, which looks from outside after it has ended
every process. Repositories, databases and archives are read by a program in a fresh sandbox that
gets their files as data. No program of the agent's runs, and nothing that was printed counts.
Not here: the entries (`entries.py`), that program (`inside_program.py`).
"""

from __future__ import annotations

import configparser
import functools
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from katgym.sandbox import SandboxBackend, SandboxLimits, SandboxSpec, WorkspaceDiff
from katgym.sandbox.changes import FileChange
from katgym_envs.terminal.state import inside_program
from katgym_envs.terminal.state.entries import (
    Archive,
    Database,
    Entry,
    File,
    Folder,
    GitRepository,
    Ini,
    Json,
    Symlink,
    Tree,
)

MAX_FILE_BYTES = 2 << 20
"""A larger file is no file of any task."""
MAX_INI_BYTES = 2_048
"""The time that configparser takes grows with the square of a line."""
MAX_CHANGES = 5_000
MAX_PROBED_BYTES = 16 << 20
"""Of repositories, databases and archives together."""
MAX_DIFFERENCES = 20
MAX_SHOWN = 200
"""Characters of a path that an agent made up."""
_LIMITS = SandboxLimits(wall_s=20.0, memory_bytes=512 << 20, max_processes=32, output_bytes=8 << 20)
_GIT_FILES = ("HEAD", "index", "packed-refs")
_GIT_FOLDERS = ("objects/", "refs/heads/", "refs/tags/")
_GIT_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n"


@dataclass(frozen=True, slots=True)
class FinalState:
    """What was found at each path, and what the fresh sandbox said of some of them."""

    found: Mapping[str, FileChange]
    answers: Mapping[str, Any]

    def differences(self, expected: Tree) -> list[str]:
        """Return what is not as expected, a line each, at most `MAX_DIFFERENCES`."""
        lines = []
        inside = tuple(f"{path}/" for path, e in expected.items() if isinstance(e, GitRepository))
        known = set(expected)
        for path in expected:
            known.update(str(parent) for parent in PurePosixPath(path).parents)
        for path in sorted(self.found):
            if path not in known and not path.startswith(inside):
                shown = path.encode("utf-8", "backslashreplace").decode()[:MAX_SHOWN]
                lines.append(f"{shown}: should not be there")
        for path, entry in expected.items():
            problem = self._problem(path, entry)
            if problem:
                lines.append(f"{path}: {problem}")
        return lines[:MAX_DIFFERENCES]

    def _problem(self, path: str, entry: Entry) -> str:
        change = self.found.get(path)
        if change is None:
            return "is missing"
        kind = {Folder: "dir", GitRepository: "dir", Symlink: "link"}.get(type(entry), "file")
        if change.file_type != kind:
            return f"is no {kind}"
        if isinstance(entry, Folder):
            return ""
        if isinstance(entry, Symlink):
            return "" if change.link_target == entry.target else "leads elsewhere"
        if isinstance(entry, Archive | Database | GitRepository):
            return "" if _is_answer(self.answers.get(path), entry) else "holds something else"
        if change.content is None:
            return "is too large"
        if isinstance(entry, File) and entry.mode not in (None, change.mode):
            return f"has mode {change.mode:o}"
        return "" if _is_content(change.content, entry) else "has other content"


async def final_state(
    diff: WorkspaceDiff, expected: Tree, *, backend: SandboxBackend, python: str | None
) -> FinalState | None:
    """Return the state that a diff shows; None where it is too large to be any task's.

    Raises `SandboxError` where the fresh sandbox cannot be had.
    """
    if diff.num_omitted:
        return None
    found = {change.path: change for change in diff}
    questions = [
        (path, kind)
        for path, entry in expected.items()
        if (kind := _kind(entry)) is not None and path in found
    ]
    files: dict[str, bytes] = {}
    for path, kind in questions:
        files.update(_repository_files(path, found) if kind == "repository" else {})
        content = found[path].content
        files.update({} if content is None else {path: content})
    if not questions or sum(map(len, files.values())) > MAX_PROBED_BYTES:
        return FinalState(found, {})
    command = 'tar -xf - && exec python3 -I -c "$0" "$1"'
    spec = SandboxSpec(
        limits=_LIMITS,
        python=python,
        env={"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"},
    )
    async with await backend.create(spec) as sandbox:
        argv = ["/bin/bash", "-c", command, _program(), json.dumps(questions)]
        result = await sandbox.exec(argv, stdin=_tar(files))
    try:
        answers = json.loads(result.stdout) if result.ok else {}
    except ValueError:
        answers = {}
    return FinalState(found, answers)


def _kind(entry: Entry) -> str | None:
    """Return what the fresh sandbox is to read; None for what is compared here."""
    match entry:
        case Archive(format=name):
            return name
        case Database():
            return "database"
        case GitRepository():
            return "repository"
    return None


@functools.cache
def _program() -> str:
    return Path(inside_program.__file__).read_text(encoding="utf-8")


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _repository_files(path: str, found: Mapping[str, FileChange]) -> Iterator[tuple[str, bytes]]:
    """Yield those files of a `.git` folder that are data; config, hooks, alternates are left."""
    yield f"{path}/config", _GIT_CONFIG
    for place, change in found.items():
        inner = place.removeprefix(f"{path}/")
        is_data = inner in _GIT_FILES or inner.startswith(_GIT_FOLDERS)
        is_other_store = inner.startswith("objects/info/")
        if inner != place and is_data and not is_other_store and change.content is not None:
            yield place, change.content


def _is_content(content: bytes, entry: Entry) -> bool:
    if isinstance(entry, File):
        return content.rstrip(b"\n") == entry.text.encode().rstrip(b"\n")
    try:
        text = content.decode()
        if isinstance(entry, Json):
            value = json.loads(text, object_pairs_hook=_object)
            return json.dumps(value, sort_keys=True) == json.dumps(entry.value, sort_keys=True)
        assert isinstance(entry, Ini)
        if len(content) > MAX_INI_BYTES:
            return False
        parser = configparser.RawConfigParser(default_section="")
        parser.optionxform = str  # type: ignore[assignment, method-assign]  # its documented use
        parser.read_string(text)
        return {name: dict(parser[name]) for name in parser.sections()} == entry.sections
    except (ValueError, RecursionError, configparser.Error):
        return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; `ValueError` for a key that occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _is_answer(answer: Any, entry: Archive | Database | GitRepository) -> bool:
    if not isinstance(answer, dict):
        return False
    if isinstance(entry, Archive):
        if entry.format == "gz":
            return _ends_alike(answer.get(""), entry.members[""])
        return answer.keys() == entry.members.keys() and all(
            _ends_alike(answer[name], text) for name, text in entry.members.items()
        )
    if isinstance(entry, Database):
        return _is_database(answer, entry)
    return _is_repository(answer, entry)


def _ends_alike(text: object, expected: str) -> bool:
    return isinstance(text, str) and text.rstrip("\n") == expected.rstrip("\n")


def _is_database(answer: Mapping[str, Any], entry: Database) -> bool:
    if answer["indexes"] != entry.indexes or answer["tables"].keys() != entry.tables.keys():
        return False
    for name, table in entry.tables.items():
        columns = [(column, kind.upper()) for column, kind in table.columns]
        if [
            (column, kind.upper()) for column, kind in answer["tables"][name]["columns"]
        ] != columns:
            return False
        rows = sorted(json.dumps(row) for row in answer["tables"][name]["rows"])
        if rows != sorted(json.dumps(row) for row in table.rows):
            return False
    return True


def _is_repository(answer: Mapping[str, Any], entry: GitRepository) -> bool:
    expected: list[tuple[Any, ...]] = []
    for commit in entry.commits:
        parents = tuple(expected[place] for place in commit.parents)
        expected.append((commit.subject, _whole(commit.files), parents))

    @functools.cache
    def history(name: str) -> tuple[Any, ...]:
        commit = answer["commits"][name]
        parents = tuple(history(parent) for parent in commit["parents"])
        return commit["subject"], _whole(commit["files"]), parents

    wanted = {f"refs/heads/{ref}": expected[place] for ref, place in entry.branches.items()}
    wanted |= {f"refs/tags/{ref}": expected[place] for ref, place in entry.tags.items()}
    tip = entry.commits[entry.branches[entry.head]]
    return (
        answer["head"] == f"ref: refs/heads/{entry.head}"
        and {ref: history(name) for ref, name in answer["refs"].items()} == wanted
        and _whole(answer["index"]) == _whole(tip.files)
    )


def _whole(files: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path, text.rstrip("\n")) for path, text in files.items()))
