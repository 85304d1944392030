"""One sandbox as the tools see it: repository paths, files with modes, what was edited how.

Not here: the tools.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from katgym.environment.tool_output import readable_text, shorten
from katgym.errors import ToolError
from katgym.sandbox import ExecResult, Sandbox
from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.layer import FileEntry, is_passable
from katgym_envs.swe.patching import PatchError, PatchFailure

MAX_OUTPUT_CHARS = 16_000
"""Characters of a tool result; the middle of longer ones is left out."""
MAX_FILE_BYTES = 4 << 20


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
            raise ToolError(f"{self.show_path(path)}: {_reason(e)}") from e

    async def read_text(self, path: str) -> str:
        """Return a text file; bytes that are not UTF-8 become surrogates, and are kept so."""
        data = await self.read(path)
        if b"\0" in data[:8192]:
            raise ToolError(f"{self.show_path(path)}: a binary file of {len(data)} bytes")
        return data.decode("utf-8", "surrogateescape")

    async def is_there(self, path: str) -> bool:
        """Return whether a file, a link or a directory has this path."""
        place = self.absolute(path)
        return (await self.sandbox.exec(["test", "-e", place, "-o", "-L", place])).ok

    async def write_text(self, path: str, text: str) -> None:
        """Replace a file, keeping whether it is executable, or create it."""
        if not is_passable(text.replace("\0", "")):
            raise ToolError(f"{self.show_path(path)}: the text has a lone surrogate, no character")
        is_executable = (await self.sandbox.exec(["test", "-x", self.absolute(path)])).ok
        data = text.encode("utf-8", "surrogateescape")
        await self._write(path, FileEntry(content=data, is_executable=is_executable))
        self.num_edits += 1

    async def _write(self, path: str, entry: FileEntry) -> None:
        place = self.absolute(path)
        if entry.link_target is not None:
            command = f"mkdir -p {_quote(str(PurePosixPath(place).parent))} && "
            command += f"ln -sfn -- {_quote(entry.link_target)} {_quote(place)}"
            self._check(await self.sandbox.exec(command), path)
            return
        mode = 0o755 if entry.is_executable else 0o644
        try:
            await self.sandbox.write(place, entry.content, mode=mode)
        except SandboxFileError as e:
            raise ToolError(f"{self.show_path(path)}: {_reason(e)}") from e

    def _check(self, result: ExecResult, path: str) -> None:
        if not result.ok:
            raise ToolError(
                f"{self.show_path(path)}: {result.text().strip() or 'cannot be written'}"
            )

    async def entries(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        """Return those of the paths that are files or links, as a tree for `patching`."""
        wanted = sorted(paths)
        lines = "".join(f"{path}\0" for path in wanted).encode("utf-8", "surrogateescape")
        script = (
            "while IFS= read -r -d '' p; do if [ -L \"$p\" ]; then printf 'l%s\\0'"
            ' "$(readlink -- "$p")"; elif [ -f "$p" ]; then if [ -x "$p" ]; then printf \'x\\0\';'
            " else printf 'f\\0'; fi; else printf -- '-\\0'; fi; done"
        )
        result = await self.sandbox.exec(script, cwd=self.root, stdin=lines)
        kinds = result.stdout.split(b"\0")[: len(wanted)]
        found: dict[str, FileEntry] = {}
        for path, kind in zip(wanted, kinds, strict=True):
            if kind[:1] == b"l":
                target = kind[1:].decode("utf-8", "surrogateescape")
                found[path] = FileEntry(link_target=target)
            elif kind in (b"f", b"x"):
                content = await self.read(path)
                found[path] = FileEntry(content=content, is_executable=kind == b"x")
        return found

    async def put(
        self, changes: Mapping[str, FileEntry | None], before: Mapping[str, FileEntry]
    ) -> None:
        """Write all changes, or none: what was written is taken back when one fails."""
        done: list[str] = []
        try:
            for path, entry in sorted(changes.items(), key=lambda item: item[1] is not None):
                await self._put_one(path, entry)
                done.append(path)
        except ToolError:
            for path in done:
                await self._put_one(path, before.get(path))
            raise
        self.num_edits += 1

    async def _put_one(self, path: str, entry: FileEntry | None) -> None:
        if entry is None:
            result = await self.sandbox.exec(["rm", "-f", "--", self.absolute(path)])
            self._check(result, path)
        else:
            await self._write(path, entry)

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


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _reason(error: SandboxFileError) -> str:
    known = {
        errno.ENOENT: "no such file",
        errno.EISDIR: "is a directory",
        errno.ENOTDIR: "a part of the path is a file",
        errno.EACCES: "permission denied",
        errno.ENOSPC: "no space left",
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
