"""The file system a sandboxed command sees: the host's /usr read-only, and little else.

Runs in the launcher, standard library only. Files of /proc that count for the whole machine are
covered, or a sandbox could leave word in them for a later one. Not here: the workspace
(`overlay.py`), namespaces (`launcher.py`).
"""

from __future__ import annotations

import os
import re

from katgym.sandbox.local.launcher import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SCRATCH = (("tmp", "tmp", 0o1777), ("shm", "dev/shm", 0o1777), ("home", "home/agent", 0o755))
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_FROM_HOST = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ssl/openssl.cnf",
    "localtime", "mime.types", "services", "protocols", "debian_version", "os-release",
)  # fmt: skip

_COVERS = "run/proc"
_PROC_CONSTANT = (
    "self", "thread-self", "mounts", "net", "sys", "sysvipc", "acpi", "asound", "bus", "cmdline",
    "config.gz", "consoles", "cpuinfo", "crypto", "devices", "dma", "driver", "execdomains",
    "filesystems", "iomem", "ioports", "kallsyms", "key-users", "keys", "locks", "misc", "modules",
    "mtrr", "partitions", "scsi", "tty", "version",
)  # fmt: skip
"""What no command moves, or each sandbox has of its own; all else at the top of /proc is covered:
one mount a command each."""
_PROC_FIGURES = {
    "loadavg": ".*", "stat": r"^(?!btime).*", "uptime": r" .*", "vmstat": ".*",
    "meminfo": r"^(?!MemTotal|MemFree|MemAvailable|SwapTotal|VmallocTotal|Hugepagesize).*",
}  # fmt: skip
"""Covered by a copy, as programs need them; in it each number is 0 that lies in a match."""
_PROC_SYS_FS_FIGURES = {
    "aio-nr": ".*", "dentry-state": ".*", "file-nr": r".*\t", "inode-nr": ".*", "inode-state": ".*",
}  # fmt: skip


def build_template(root: str, binds: Sequence[str], masks: Sequence[str]) -> list[str]:
    """Assemble the part of the root file system that all sandboxes share, at `root`.

    binds: host directories mounted read-only at their own paths (an interpreter, its venv).
    masks: directories inside those that are hidden behind an empty one.
    Returns what `cover_proc` covers.

    Needs the mount capability; host directories are reached as the caller.
    """
    os.makedirs(root, exist_ok=True)
    linux.mount("template", root, "tmpfs", linux.MS_NOSUID, "mode=0755,size=16m")
    for name in ("proc", "dev", "tmp", "run", "home/agent", "root", "var/tmp", "etc/ssl", "usr"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    _bind_read_only("/usr", f"{root}/usr")
    for name in _SYSTEM:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.makedirs(f"{root}/{name}")
            _bind_read_only(f"/{name}", f"{root}/{name}")
    _make_etc(root)
    _make_dev(root)
    for path in binds:
        if os.path.isdir(path) and not f"{path}/".startswith("/usr/"):
            os.makedirs(root + path, exist_ok=True)
            _bind_read_only(path, root + path)
    for path in masks:
        if os.path.isdir(root + path):
            linux.mount("mask", root + path, "tmpfs", _READ_ONLY, "mode=0555,size=4k")
    return _make_covers(f"{root}/{_COVERS}")


def _bind_read_only(source: str, target: str) -> None:
    linux.mount(source, target, "", linux.MS_BIND | linux.MS_REC)
    linux.protect(target)


def _make_etc(root: str) -> None:
    files = {
        "passwd": "root:x:0:0:root:/root:/bin/sh\n"
        "agent:x:1000:1000:agent:/home/agent:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "hostname": "sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, text in files.items():
        with open(f"{root}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    for name in _ETC_FROM_HOST:
        source, target = f"/etc/{name}", f"{root}/etc/{name}"
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
            _bind_read_only(source, target)
        elif os.path.isfile(source):
            with open(source, "rb") as old, open(target, "wb") as new:
                new.write(old.read())


def _make_dev(root: str) -> None:
    for name in _DEVICES:
        target = f"{root}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        linux.mount(f"/dev/{name}", target, "", linux.MS_BIND)
        linux.protect(target, linux.MOUNT_ATTR_READ_ONLY_NO_SUID)  # its times are the host's
    for name, target in (
        ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
    ):  # fmt: skip
        os.symlink(target, f"{root}/dev/{name}")
    os.makedirs(f"{root}/dev/shm")


def _make_covers(folder: str) -> list[str]:
    """Make what lies over a sandbox's /proc; return the names, below /proc."""
    names = [n for n in sorted(os.listdir("/proc")) if not n.isdigit() and n not in _PROC_CONSTANT]
    covered = [name for name in names if os.stat(f"/proc/{name}").st_mode & 0o004]
    os.makedirs(folder)
    for name in covered:
        if os.path.isdir(f"/proc/{name}"):
            os.mkdir(f"{folder}/{name}")
        else:
            _copy_figures(f"/proc/{name}", f"{folder}/{name}", _PROC_FIGURES.get(name))
    for base, inner, names in os.walk("/proc/sys/fs"):
        inner[:] = [name for name in inner if name != "binfmt_misc"]  # looking mounts it
        target = folder + base[len("/proc") :]
        os.makedirs(target)
        for name in names:
            pattern = _PROC_SYS_FS_FIGURES.get(name, "$")
            _copy_figures(f"{base}/{name}", f"{target}/{name}", pattern)
    return [*covered, "sys/fs"]


def _copy_figures(source: str, target: str, pattern: str | None) -> None:
    """Write a copy in which each number within a match is 0, and all memory free; None: empty."""
    text = ""
    try:
        if pattern is not None:
            with open(source, encoding="utf-8", errors="replace") as file:
                text = file.read()
    except OSError:  # some of /proc/sys can only be written
        pattern = None
    total = re.search(r"^MemTotal:(.*)", text)
    if total is not None:
        text = re.sub(r"^(MemFree|MemAvailable):.*", rf"\1:{total[1]}", text, flags=re.M)
    if pattern is not None:
        text = re.sub(pattern, lambda m: re.sub(r"\b\d+", "0", m[0]), text, flags=re.M)
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)


def cover_proc(names: Sequence[str]) -> None:
    """Cover what counts for the whole machine in the /proc of this mount namespace."""
    for name in names:
        linux.mount(f"/{_COVERS}/{name}", f"/proc/{name}", "", linux.MS_BIND)


def enter(template: str, workdir: str, workspace_fd: int, spec: Mapping[str, Any]) -> None:
    """Make a private copy of the template the root of this mount namespace, and fill it.

    Adds /proc, /tmp, /dev/shm, home, further folders and the workspace; `spec` holds `disk_bytes`,
    `max_files`, `folders`, `uid` and `gid` (of the agent, in this user namespace). A limit of None
    is unlimited.
    """
    size = f"size={spec['disk_bytes'] or 0},nr_inodes={spec['max_files'] or 0}"
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount(template, template, "", linux.MS_BIND | linux.MS_REC)
    os.chdir(template)
    linux.mount("proc", "proc", "proc", flags | linux.MS_NOEXEC)
    # One file system for all that is scratch, so that one limit holds for their sum.
    linux.mount("scratch", "run", "tmpfs", flags, f"mode=0755,{size}")
    further = [(str(i), place.lstrip("/"), 0o755) for i, place in enumerate(spec["folders"])]
    for name, place, mode in (*_SCRATCH, *further):
        os.mkdir(f"run/{name}")
        os.chmod(f"run/{name}", mode)
        if mode == 0o755:
            os.chown(f"run/{name}", spec["uid"], spec["gid"])
        os.makedirs(place, exist_ok=True)
        linux.mount(f"run/{name}", place, "", linux.MS_BIND)
    linux.umount("run")
    target = workdir.lstrip("/")
    if not os.path.isdir(target):
        # The template is shared, so a new directory goes on a file system of this sandbox alone.
        os.makedirs(target, exist_ok=True)
    linux.move_mount(workspace_fd, target)
    os.close(workspace_fd)
    linux.pivot_root(".", ".")
    linux.umount(".")
    os.chdir("/")
    linux.mount("none", "/", "", linux.MS_BIND | linux.MS_REMOUNT | _READ_ONLY)
