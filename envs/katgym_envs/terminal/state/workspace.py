"""Makes a workspace from a tree: one tar archive, unpacked in the sandbox before the agent acts.

Not here: what a tree says (`entries.py`).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing

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

PLAIN = 0o644
TIME = 1_704_110_400
"""2024-01-01 12:00 UTC: when everything without another time was last changed."""
_GIT_CONFIG = """[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
[user]
	name = agent
	email = agent@localhost
[gc]
	auto = 0
"""


def pack(tree: Tree) -> bytes:
    """Return a tar archive of everything a tree says."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree):
            entry = tree[path]
            for name, content, mode in _files(path, entry):
                _add(tar, name, content, mode, _time(entry))
            if isinstance(entry, Folder | Symlink):
                info = tarfile.TarInfo(path)
                info.type = tarfile.DIRTYPE if isinstance(entry, Folder) else tarfile.SYMTYPE
                info.mode, info.mtime = 0o755, TIME
                info.linkname = entry.target if isinstance(entry, Symlink) else ""
                tar.addfile(info)
    return buffer.getvalue()


def _time(entry: Entry) -> int:
    time = entry.time if isinstance(entry, File) else None
    return TIME if time is None else time


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int, time: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), mode, time
    tar.addfile(info, io.BytesIO(content))


def _files(path: str, entry: Entry) -> Iterator[tuple[str, bytes, int]]:
    """Yield path, content and mode of the files that an entry is made of."""
    match entry:
        case File(text=text, mode=mode):
            yield path, text.encode(), PLAIN if mode is None else mode
        case Json(value=value):
            yield path, (json.dumps(value, indent=2) + "\n").encode(), PLAIN
        case Ini(sections=sections):
            parts = [
                f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
                for name, keys in sections.items()
            ]
            yield path, "\n".join(parts).encode(), PLAIN
        case Archive():
            yield path, archive_bytes(entry), PLAIN
        case Database():
            yield path, _database_bytes(entry), PLAIN
        case GitRepository():
            for name, content in _repository_files(entry).items():
                yield f"{path}/{name}", content, PLAIN


def archive_bytes(archive: Archive) -> bytes:
    """Return the archive; the same members make the same bytes."""
    buffer = io.BytesIO()
    if archive.format == "gz":
        return gzip.compress(archive.members[""].encode(), mtime=0)
    if archive.format == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
            for name, text in archive.members.items():
                made.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 12, 0, 0)), text)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in archive.members.items():
            _add(tar, name, text.encode(), PLAIN, TIME)
    data = buffer.getvalue()
    return gzip.compress(data, mtime=0) if archive.format == "tar.gz" else data


def _database_bytes(database: Database) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        for name, table in database.tables.items():
            columns = ", ".join(f"{column} {kind}" for column, kind in table.columns)
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", table.rows)
        connection.commit()
        return connection.serialize()


def _repository_files(repository: GitRepository) -> Mapping[str, bytes]:
    """Return the files below `.git`, but for the index, which git makes from HEAD."""
    found: dict[str, bytes] = {
        "HEAD": f"ref: refs/heads/{repository.head}\n".encode(),
        "config": _GIT_CONFIG.encode(),
    }

    def store(kind: str, content: bytes) -> str:
        data = f"{kind} {len(content)}\0".encode() + content
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        found[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(data)
        return name

    def store_tree(files: Mapping[str, str]) -> str:
        folders: dict[str, dict[str, str]] = {}
        lines: dict[str, bytes] = {}
        for path, text in files.items():
            head, slash, rest = path.partition("/")
            if slash:
                folders.setdefault(head, {})[rest] = text
            else:
                blob = store("blob", text.encode())
                lines[head] = b"100644 " + head.encode() + b"\0" + bytes.fromhex(blob)
        for name, inner in folders.items():
            tree = bytes.fromhex(store_tree(inner))
            lines[f"{name}/"] = b"40000 " + name.encode() + b"\0" + tree  # as git sorts them
        return store("tree", b"".join(lines[name] for name in sorted(lines)))

    names: list[str] = []
    for i, commit in enumerate(repository.commits):
        when = f"Mara Lind <mara@example.org> {TIME + 3600 * i} +0000"
        head = [f"tree {store_tree(commit.files)}"]
        head += [f"parent {names[parent]}" for parent in commit.parents]
        head += [f"author {when}", f"committer {when}"]
        names.append(store("commit", ("\n".join(head) + f"\n\n{commit.subject}\n").encode()))
    for kind, refs in (("heads", repository.branches), ("tags", repository.tags)):
        for ref, place in refs.items():
            found[f"refs/{kind}/{ref}"] = f"{names[place]}\n".encode()
    return found
