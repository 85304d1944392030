"""Probes of what this machine lets the local backend enforce.

Not here: enforcing it (`launcher/`, `cgroups.py`).
"""

from __future__ import annotations

import os
import platform
from typing import Protocol

from katgym.sandbox.base import Enforcement, SandboxError
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.sandbox import Sandbox
from katgym.sandbox.spec import SandboxSpec

_PROBE = """
echo uid $(id -u)
grep -q '^CapBnd:.0000000000000000$' /proc/self/status && \
    grep -q '^CapEff:.0000000000000000$' /proc/self/status && echo capabilities yes
grep -q '^NoNewPrivs:.1$' /proc/self/status && echo no_new_privs yes
grep -q '^Seccomp:.2$' /proc/self/status && echo seccomp yes
[ "$(cut -s -d: -f1 /proc/net/dev | tr -d ' ')" = lo ] && echo network yes
[ ! -w /usr ] && ! touch /usr/probe 2>/dev/null && echo read_only yes
[ "$(ls -d /proc/[0-9]* | wc -l)" -lt 9 ] && echo pids yes
[ "$(cat /proc/sys/user/max_user_namespaces)" = 0 ] && echo user_namespaces yes
! cat /proc/net/softnet_stat >/dev/null 2>&1 && ! touch -c /dev/null 2>/dev/null && \
    [ -z "$(cat /proc/interrupts /proc/softirqs /proc/diskstats)" ] && echo counters yes
"""
_NEEDED = ("uid", "capabilities", "no_new_privs", "seccomp", "network", "read_only", "pids")
_FURTHER = ("user_namespaces", "counters")
"""Further lines of defence: their lack alone does not make a sandbox unsafe."""


class _Backend(Protocol):
    level: str | None
    groups_text: str

    async def create_unchecked(self, spec: SandboxSpec) -> Sandbox: ...


async def probe_enforcement(backend: _Backend) -> Enforcement:
    """Make one sandbox, look around in it, and say what that shows."""
    if platform.system() != "Linux":
        return _nothing(f"local sandboxes need Linux, this is {platform.system()}")
    spec = SandboxSpec(limits=SandboxLimits(memory_bytes=64 * MEBIBYTE, disk_bytes=MEBIBYTE))
    try:
        async with await backend.create_unchecked(spec) as sandbox:
            told = (await sandbox.exec(_PROBE)).stdout.decode("utf-8", "replace").splitlines()
    except SandboxError as e:
        return _nothing(str(e))
    probes = dict.fromkeys((*_NEEDED, *_FURTHER), "no") | dict(line.split(" ", 1) for line in told)
    probes["uid"] = "yes" if probes["uid"] == "1000" else f"no, it is {probes['uid']}"
    probes["cgroup"] = backend.groups_text
    level = str(backend.level)
    capabilities = {"fork", "snapshot", "call", "python"}
    if level != "none":
        capabilities |= {"folders", "users"} if os.geteuid() == 0 else {"folders"}
    failed = [name for name in _NEEDED if probes[name] != "yes"]
    return Enforcement(
        backend="local",
        level=level,
        is_safe=level != "none" and not failed,
        limits=_limits(level, backend.groups_text),
        capabilities=frozenset(capabilities),
        probes=probes,
        notes=tuple(_notes(level, failed)),
    )


def _limits(level: str, groups_text: str) -> dict[str, str]:
    group = groups_text if level.endswith("+cgroup") else ""
    found = {
        "wall_s": "the supervisor's clock",
        "cpu_s": "rlimit for a process, the supervisor every 0.1 s for their sum",
        "memory_bytes": group
        or "rlimit (address space) for a process, the supervisor every 0.1 s for their sum",
        "max_processes": group or "rlimit, for each command",
        "disk_bytes": "tmpfs size",
        "max_files": "tmpfs inodes",
        "max_open_files": "rlimit",
        "file_bytes": "rlimit",
        "output_bytes": "the supervisor keeps no more",
    }
    if level == "none":
        for name in ("disk_bytes", "max_files", "max_processes"):
            del found[name]
    return found


def _notes(level: str, failed: list[str]) -> list[str]:
    if level == "none":
        return [
            "no isolation: commands are processes of the user who runs katgym, and can read, write"
            " and reach whatever that user can",
            "disk_bytes, max_files and max_processes are not enforced",
            "processes that a command leaves behind are ended as far as they can be found",
        ]
    notes = [f"probe {name!r} failed: untrusted code must not run here" for name in failed]
    notes += [
        "memory_bytes, max_processes, disk_bytes and max_files hold for the whole sandbox, so the"
        " spec's count; an exec's own tighter ones are ignored"
        if level.endswith("+cgroup")
        else "disk_bytes and max_files hold for the whole sandbox, so the spec's count; an exec's"
        " own tighter ones are ignored",
        "the workspace is one memory-backed file system of disk_bytes and max_files, and /tmp,"
        " /dev/shm and the home together are another; what lies there counts as memory",
    ]
    if not level.endswith("+cgroup"):
        notes.append(
            "without a cgroup, files in memory are limited by disk_bytes alone, and memory beyond"
            " memory_bytes is noticed within 0.1 s; run as root, or where cgroups are delegated"
            " (systemd-run --user --scope -p Delegate=yes ...)"
        )
    if os.geteuid() != 0:
        notes.append("not root: every user inside is the same user outside")
    return notes


def _nothing(reason: str) -> Enforcement:
    return Enforcement(
        backend="local", level="none", is_safe=False, probes={"namespaces": reason}, notes=(reason,)
    )
