"""Reading and writing files of a sandbox without following a link out; runs inside, Python >= 3.8.

Whoever calls may trust neither names nor types nor links: an agent made them. Not here: comparing
trees (`baseline.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH208, SIM105

from __future__ import annotations

import errno
import os
import stat

from katgym.sandbox.supervisor import syscalls

MAX_DEPTH = 200
"""Folders deeper than this are not walked."""
_MAX_LINKS = 40
_CHUNK = 1 << 20
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """The folders whose files may be touched, and who owns what is written there."""

    def __init__(self, roots: tuple[bytes, ...], owner: tuple[int, int] | None) -> None:
        self.roots = roots
        self.owner = owner

    def locate(self, path: bytes) -> tuple[int, bytes, bytes]:
        """Return an open root (the caller closes it), its path, and the path below it."""
        for root in self.roots:
            if not path.startswith(b"/"):
                return os.open(root, _FOLDER), root, path
            if path == root or path.startswith(root + b"/"):
                return os.open(root, _FOLDER), root, path[len(root) :].lstrip(b"/")
        raise _outside(path)

    def own(self, fd: int) -> None:
        """Give an open file to the agent."""
        if self.owner is not None:
            os.fchown(fd, *self.owner)


def _outside(path: bytes) -> OSError:
    return OSError(errno.EXDEV, "leads out of the workspace and /tmp", os.fsdecode(path))


def read_file(folders: Folders, path: bytes, max_bytes: int) -> bytes:
    """Return a regular file's content; `OSError` says why not."""
    root_fd, root, relative = folders.locate(path)
    try:
        try:
            flags = (_READ & ~os.O_NOFOLLOW) | os.O_CLOEXEC
            rules = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
            fd = syscalls.openat2(root_fd, relative or b".", flags, rules)
        except OSError as error:
            # EXDEV: also for an absolute link that leads back in; the others: no such system call.
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EPERM):
                raise
            parent, name = _walk(folders, root_fd, root, relative, is_for_writing=False)
            try:
                fd = os.open(name or b".", _READ, dir_fd=parent)
            finally:
                os.close(parent)
    finally:
        os.close(root_fd)
    try:
        return read_regular(fd, max_bytes, path)
    finally:
        os.close(fd)


def read_regular(fd: int, max_bytes: int, path: bytes) -> bytes:
    """Return the content of an open file if it is regular and no larger than that."""
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise OSError(errno.EISDIR, "is a directory", os.fsdecode(path))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", os.fsdecode(path))
    parts: list[bytes] = []
    left = max_bytes + 1  # it may grow while it is read
    if info.st_size < left:
        while left > 0:
            part = os.read(fd, min(left, _CHUNK))
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
    raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", os.fsdecode(path))


def write_file(folders: Folders, path: bytes, data: bytes, mode: int) -> None:
    """Replace or create a regular file in one step, and make the folders on the way."""
    root_fd, root, relative = folders.locate(path)
    try:
        parent, name = _walk(folders, root_fd, root, relative, is_for_writing=True)
    finally:
        os.close(root_fd)
    try:
        if name in (b"", b".", b".."):
            raise OSError(errno.EISDIR, "is a directory", os.fsdecode(path))
        temporary = b".katgym-" + os.urandom(8).hex().encode()
        try:
            create(folders, parent, temporary, data, mode)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            try:
                os.unlink(temporary, dir_fd=parent)
            except FileNotFoundError:
                pass
            raise OSError(error.errno, error.strerror, os.fsdecode(path)) from None
    finally:
        os.close(parent)


def create(folders: Folders, parent: int, name: bytes, data: bytes, mode: int) -> None:
    """Create a regular file that is not there yet in an open folder."""
    fd = os.open(name, _CREATE, mode & 0o7777, dir_fd=parent)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        folders.own(fd)
        os.fchmod(fd, mode & 0o7777)
    finally:
        os.close(fd)


def _walk(
    folders: Folders, root_fd: int, root: bytes, relative: bytes, *, is_for_writing: bool
) -> tuple[int, bytes]:
    """Resolve a path below a root step by step; return its folder (open) and last name.

    Links are followed as long as they stay below the root. For writing a link at the path itself is
    not, and folders on the way are made. Opened folders are held, so that a rename meanwhile leads
    nowhere else.
    """
    pending = [part for part in reversed(relative.split(b"/")) if part not in (b"", b".")]
    chain = [os.dup(root_fd)]
    num_links = 0
    try:
        while pending:
            name = pending.pop()
            if name == b"..":
                if len(chain) == 1:
                    raise _outside(relative)
                os.close(chain.pop())
                continue
            if not pending and is_for_writing:
                return chain.pop(), name
            link = _link_target(chain[-1], name)
            if link is not None:
                num_links += 1
                if num_links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(relative))
                if link.startswith(b"/"):
                    if link != root and not link.startswith(root + b"/"):
                        raise _outside(relative)
                    link = link[len(root) :]
                    while len(chain) > 1:
                        os.close(chain.pop())
                pending += [p for p in reversed(link.split(b"/")) if p not in (b"", b".")]
                continue
            if not pending:
                return chain.pop(), name
            chain.append(_enter(folders, chain[-1], name, is_made=is_for_writing))
            if len(chain) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, "too many folders", os.fsdecode(relative))
        return chain.pop(), b""
    finally:
        for fd in chain:
            os.close(fd)


def _link_target(parent: int, name: bytes) -> bytes | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing there
            return None
        raise


def _enter(folders: Folders, parent: int, name: bytes, *, is_made: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not is_made:
            raise
    return make_folder(folders, parent, name, 0o755)


def make_folder(folders: Folders, parent: int, name: bytes, mode: int) -> int:
    """Make a folder for the agent if there is none; return it, open."""
    is_new = True
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        is_new = False
    fd = os.open(name, _FOLDER, dir_fd=parent)
    if is_new and folders.owner is not None:
        os.chown(name, *folders.owner, dir_fd=parent, follow_symlinks=False)
    return fd


def remove(parent: int, name: bytes) -> None:
    """Remove a file or a whole tree from an open folder; nothing there is fine.

    Trees are flattened while they are emptied, so that neither depth nor path length matters.
    """
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    pending = [name]
    counter = 0
    while pending:
        current = pending.pop()
        os.chmod(current, 0o700, dir_fd=parent)  # a folder in a folder: nobody runs meanwhile
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(current, flags, dir_fd=parent)
        try:
            for child in os.listdir(fd):
                raw = os.fsencode(child)
                try:
                    os.unlink(raw, dir_fd=fd)
                except OSError as error:
                    if error.errno not in (errno.EISDIR, errno.EPERM):
                        raise
                    os.chmod(raw, 0o700, dir_fd=fd)
                    counter += 1
                    moved = b".katgym-%d-%s" % (counter, os.urandom(4).hex().encode())
                    os.rename(raw, moved, src_dir_fd=fd, dst_dir_fd=parent)
                    pending.append(moved)
        finally:
            os.close(fd)
        os.rmdir(current, dir_fd=parent)


def empty(folder: bytes) -> None:
    """Remove everything in a folder, which has to be reachable without links."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(fd):
            remove(fd, os.fsencode(name))
    finally:
        os.close(fd)
