"""One writer a folder: an advisory lock that is gone with the process, however it ends.

Not here: what is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from katgym.errors import UsageError
from katgym.system.atomic_files import explain_os_error
from katgym.system.locks.file_lock import lock_file


class FolderGuard:
    """Holds a folder for this process.

    Example:
        guard = FolderGuard(Path("runs/a"))
        guard.take()
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None = None,
        hint: str = "name another folder with --out",
        file: str = ".guard",
    ) -> None:
        """Prepare a guard.

        name: what messages call the folder, by default its path. hint: what else there is to do
        besides waiting. file: that is locked; guards of different files do not exclude each other.
        """
        self._path = folder / file
        self._name = name or str(folder)
        self._hint = hint
        self._file: IO[bytes] | None = None

    def take(self, *, should_wait: bool = False) -> None:
        """Take the folder, which exists; `UsageError` if another process holds it.

        should_wait: wait for the other process instead.
        """
        with explain_os_error(self._path):
            file = self._path.open("ab")
        try:
            lock_file(file, should_wait=should_wait)
        except BlockingIOError:
            file.close()
            raise UsageError(
                f"another process is writing to {self._name!r}; wait for it or {self._hint}"
            ) from None
        self._file = file

    def release(self) -> None:
        """Let other processes in; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
