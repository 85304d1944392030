"""One sandbox as the tools see it: repository paths, files with modes, what was edited how.

Not here: the tools.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Self

from katgym.environment.tool_output import readable_text, shorten
from katgym.errors import ToolError
from katgym.sandbox import ExecResult, Sandbox
from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.layer import EXECUTABLE, PLAIN, FileEntry, is_passable
from katgym_envs.swe.patching import PatchError, PatchFailure, ShownText

MAX_OUTPUT_CHARS = 16_000
"""Characters of a tool result; the middle of longer ones is left out."""
MAX_FILE_BYTES = 4 << 20
# For each path: target of the link it is, where that leads in the end, mode and number of names of
# what is there, and of a path without anything the folder above it that is a link to nothing.
_STATES = r"""
printf '%s\0' "$(readlink -f .; printf .)"
while IFS= read -r -d '' p; do
  l= r= s= d=
  if [ -L "$p" ]; then l=$(readlink -- "$p"; printf .); r=$(readlink -f -- "$p"; printf .); fi
  if [ -e "$p" ]; then s=$(stat -Lc '%f %h' -- "$p")
  else
    d=${p%/*}
    while [ -n "$d" ] && ! [ -e "$d" ] && ! [ -L "$d" ]; do d=${d%/*}; done
    if [ -e "$d" ]; then d=; fi
  fi
  printf '%s\0' "$l" "$r" "$s" "$d"
done
"""
# Into the same file: a new one would part it from its other names.
_WRITE_SHARED = """[ -w "$1" ] || chmod u+w "$1"
cat > "$1" && { [ "$(stat -c %a "$1")" = "$2" ] || chmod "$2" "$1"; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathState:
    """What is at a path of the sandbox."""

    file: str
    """Absolute path that is read and written: where a symbolic link leads, "" if it leads out."""
    link_target: str | None
    """Of a symbolic link."""
    mode: int | None
    """File type and permissions behind all links; None if nothing is there."""
    num_names: int
    """Hard links of it."""
    dangling_folder: str
    """Folder on the way that is a symbolic link to nothing; "" if there is none."""

    @property
    def permissions(self) -> int | None:
        """The mode bits of a regular file; None of anything else."""
        if self.mode is None or not stat.S_ISREG(self.mode):
            return None
        return stat.S_IMODE(self.mode)

    @property
    def is_shared(self) -> bool:
        """Whether it is a file with several names."""
        return self.permissions is not None and self.num_names > 1

    @classmethod
    def of(cls, place: str, root: str, real_root: str, fields: Iterable[str]) -> Self:
        """Read what `_STATES` tells of a path; real_root: the root behind all links."""
        link, real, status, folder = fields
        mode, _, num_names = status.partition(" ")
        file = place
        if link:
            real, file = real.removesuffix("\n."), ""
            if PurePosixPath(real).is_relative_to(real_root):
                file = str(PurePosixPath(root, PurePosixPath(real).relative_to(real_root)))
            elif real.startswith("/tmp/") and place.startswith("/tmp/"):
                file = real
        return cls(
            file=file,
            link_target=link.removesuffix("\n.") if link else None,
            mode=int(mode, 16) if mode else None,
            num_names=int(num_names or 0),
            dangling_folder=folder,
        )


@dataclass(slots=True)
class OpenWorkspace:
    """A live sandbox with the repository at `root`."""

    sandbox: Sandbox
    env: Mapping[str, str] = field(default_factory=dict)
    """What the agent's shell exported."""
    cwd: str = ""
    """Where the agent's shell is; "" is the repository's root."""
    failures: Counter[PatchFailure] = field(default_factory=Counter)
    """Edits that did not apply, by reason."""
    num_edits: int = 0
    """Edits that applied."""

    @property
    def root(self) -> str:
        """The repository's directory in the sandbox."""
        return self.sandbox.spec.workdir

    def absolute(self, path: str) -> str:
        """Return where a path is; relative ones start at the repository's root."""
        check_texts(path=path)
        if not path.strip():
            raise ToolError(f"not a path: {path!r}")
        return str(PurePosixPath(self.root, path))

    def show_path(self, path: str) -> str:
        """Return a path as messages name it: relative to the repository if it lies in it."""
        place = PurePosixPath(self.absolute(path))
        return str(place.relative_to(self.root)) if place.is_relative_to(self.root) else str(place)

    async def read(self, path: str) -> bytes:
        """Return a file's bytes; `ToolError` says why not."""
        try:
            return await self.sandbox.read(self.absolute(path), max_bytes=MAX_FILE_BYTES)
        except SandboxFileError as e:
            if e.errno in (errno.ENOENT, errno.EXDEV, errno.ELOOP):
                (state,) = await self.states([path])
                self.check_links(path, state)
            raise ToolError(f"{self.show_path(path)}: {_reason(e)}") from e

    async def read_shown(self, path: str, *, is_exact: bool = False) -> ShownText:
        """Return a text file as tools show it; is_exact: with every byte."""
        data = await self.read(path)
        if b"\0" in data[:8192]:
            raise ToolError(f"{self.show_path(path)}: a binary file of {len(data)} bytes")
        return ShownText(data, is_exact=is_exact)

    async def states(self, paths: Iterable[str]) -> list[PathState]:
        """Return what each path is, in order."""
        places = [self.absolute(path) for path in paths]
        told = await self.sandbox.exec(
            _STATES, cwd=self.root, stdin=b"".join(os.fsencode(place) + b"\0" for place in places)
        )
        real_root, *parts = [os.fsdecode(part) for part in told.stdout.split(b"\0")]
        if len(parts) != 4 * len(places) + 1:  # the last one is empty
            raise ToolError(f"the paths cannot be looked at: {told.text().strip()[-300:]}")
        real_root = real_root.removesuffix("\n.")
        return [
            PathState.of(place, self.root, real_root, parts[4 * i : 4 * i + 4])
            for i, place in enumerate(places)
        ]

    def check_links(self, path: str, state: PathState) -> None:
        """Raise `ToolError` if a symbolic link on the way leads to nothing, or out."""
        shown, link = self.show_path(path), state.link_target
        if state.dangling_folder:
            folder = self.show_path(state.dangling_folder)
            raise ToolError(f"{shown}: {folder} is a symbolic link to nothing")
        if link is not None and state.mode is None:
            raise ToolError(f"{shown} is a symbolic link to {link!r}, where nothing is")
        if link is not None and not state.file:
            raise ToolError(
                f"{shown} is a symbolic link to {link!r}, which leads out of the repository"
            )

    def encode(self, path: str, text: str) -> bytes:
        """Return a text for a file as bytes; surrogates stand for bytes that are not UTF-8."""
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as e:
            raise ToolError(
                f"{self.show_path(path)}: the text has a lone surrogate, no character"
            ) from e

    async def write(self, path: str, data: bytes) -> None:
        """Replace a file, or what a link leads to, keeping its mode; or create it."""
        (state,) = await self.states([path])
        self.check_links(path, state)
        mode = PLAIN if state.permissions is None else state.permissions
        await self._write_file(state.file, data, mode, is_shared=state.is_shared)
        self.num_edits += 1

    async def _write_file(self, place: str, data: bytes, mode: int, *, is_shared: bool) -> None:
        if is_shared:
            command = ["/bin/bash", "-c", _WRITE_SHARED, "bash", place, f"{mode:o}"]
            self._check(await self.sandbox.exec(command, stdin=data), place)
            return
        try:
            await self.sandbox.write(place, data, mode=mode)
        except SandboxFileError as e:
            raise ToolError(f"{self.show_path(place)}: {_reason(e)}") from e

    def _check(self, result: ExecResult, path: str) -> None:
        if not result.ok:
            raise ToolError(
                f"{self.show_path(path)}: {result.text().strip() or 'cannot be written'}"
            )

    async def entries(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        """Return those of the paths that are files or links, as a tree for `patching`."""
        wanted = sorted(paths)
        found: dict[str, FileEntry] = {}
        for path, state in zip(wanted, await self.states(wanted), strict=True):
            if state.link_target is not None:
                found[path] = FileEntry(link_target=state.link_target)
            elif state.permissions is not None:
                content = await self.read(path)
                is_executable = bool(state.permissions & 0o100)
                found[path] = FileEntry(content=content, is_executable=is_executable)
        return found

    async def linked_files(self, links: Iterable[str]) -> dict[str, str]:
        """Return the paths, relative to the repository, of the files that links lead to."""
        wanted = sorted(links)
        found: dict[str, str] = {}
        for path, state in zip(wanted, await self.states(wanted), strict=True):
            self.check_links(path, state)
            found[path] = self.show_path(state.file)
        return found

    async def put(
        self,
        changes: Mapping[str, FileEntry | None],
        before: Mapping[str, FileEntry],
        moves: Mapping[str, str],
    ) -> None:
        """Write all changes, or none: what was written is taken back when one fails.

        Files keep their modes but for the executable bit; moves: new path -> the path whose mode
        the file has.
        """
        paths = [*changes, *moves.values()]
        states = dict(zip(paths, await self.states(paths), strict=True))
        done: list[str] = []
        try:
            for path, entry in sorted(changes.items(), key=lambda item: item[1] is not None):
                await self._put_one(path, entry, states[path], states[moves.get(path, path)])
                done.append(path)
        except ToolError:
            for path in done:
                await self._put_one(path, before.get(path), states[path], states[path])
            raise
        self.num_edits += 1

    async def _put_one(
        self, path: str, entry: FileEntry | None, was: PathState, source: PathState
    ) -> None:
        """Make a path what it should be; source: the state of the file whose mode it has."""
        place = self.absolute(path)
        if entry is None:
            self._check(await self.sandbox.exec(["rm", "-f", "--", place]), path)
            return
        if was.dangling_folder:
            self.check_links(path, was)
        if entry.link_target is not None:
            command = 'mkdir -p -- "${2%/*}" && ln -sfn -- "$1" "$2"'
            argv = ["/bin/bash", "-c", command, "bash", entry.link_target, place]
            self._check(await self.sandbox.exec(argv), path)
            return
        mode = EXECUTABLE if entry.is_executable else PLAIN
        if source.link_target is None and source.permissions is not None:
            mode = source.permissions
            if bool(mode & 0o100) != entry.is_executable:  # for all who may read it, or for none
                mode = mode & ~0o111 if mode & 0o100 else mode | (mode & 0o444) >> 2
        is_shared = was.link_target is None and was.is_shared
        await self._write_file(place, entry.content, mode, is_shared=is_shared)

    def refuse(self, error: PatchError) -> ToolError:
        """Count an edit that did not apply; return what the agent is told."""
        self.failures[error.reason] += 1
        return ToolError(f"nothing was changed: {error}")

    def refuse_text(self, reason: PatchFailure, text: str) -> ToolError:
        """Count an edit that did not apply; return what the agent is told."""
        self.failures[reason] += 1
        return ToolError(f"nothing was changed: {text}")


def check_texts(**arguments: str) -> None:
    """Raise `ToolError` for an argument of a tool that no command can be given."""
    for name, text in arguments.items():
        if not is_passable(text):
            raise ToolError(
                f"{name} has a NUL character or a lone surrogate, which no command takes; leave it"
                f" out: {text!r:.200}"
            )


def _reason(error: SandboxFileError) -> str:
    known = {
        errno.ENOENT: "no such file",
        errno.EISDIR: "is a directory",
        errno.ENOTDIR: "a part of the path is a file",
        errno.EACCES: "permission denied",
        errno.ENOSPC: "no space left",
        errno.EXDEV: "leads out of the repository and /tmp",
        errno.ELOOP: "a symbolic link that leads in a circle",
    }
    return known.get(error.errno or 0, str(error))


def output_text(result: ExecResult, *, max_chars: int = MAX_OUTPUT_CHARS) -> str:
    """Return what a command printed, readable, shortened in the middle, with how it ended."""
    text = shorten(readable_text(result.text()), max_chars)
    if text and not text.endswith("\n"):
        text += "\n"
    if result.is_timed_out:
        return f"{text}[stopped after {result.wall_s:.0f} s ({result.limit_hit})]"
    if result.is_out_of_memory:
        return f"{text}[stopped: out of memory]"
    if result.exit_code is None:
        return f"{text}[ended by signal {result.signal}]"
    return f"{text}[exit code {result.exit_code}]"
