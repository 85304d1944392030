"""What this machine lets the local backend enforce, found out by trying.

Not here: enforcing it (`launcher.py`, `cgroups.py`, `confinement.py`).
"""

from __future__ import annotations

import os
import platform
from typing import Protocol

from katgym.sandbox.base import Enforcement, Sandbox, SandboxError
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.spec import SandboxSpec

_PROBE = """
echo uid $(id -u)
grep -q '^CapEff:.0000000000000000$' /proc/self/status && echo capabilities yes
grep -q '^NoNewPrivs:.1$' /proc/self/status && echo no_new_privs yes
grep -q '^Seccomp:.2$' /proc/self/status && echo seccomp yes
[ "$(cut -s -d: -f1 /proc/net/dev | tr -d ' ')" = lo ] && echo network yes
[ ! -w /usr ] && ! touch /usr/probe 2>/dev/null && echo read_only yes
[ "$(ls -d /proc/[0-9]* | wc -l)" -lt 9 ] && echo pids yes
"""
_NEEDED = ("uid", "capabilities", "no_new_privs", "seccomp", "network", "read_only", "pids")
_WALL, _SIZE = "supervisor's clock", "tmpfs size"


class _Maker(Protocol):
    async def create_unchecked(self, spec: SandboxSpec) -> Sandbox: ...


async def probe_enforcement(backend: _Maker, groups_text: str) -> Enforcement:
    """Make one sandbox, look around in it, and say what that shows."""
    if platform.system() != "Linux":
        return _nothing(f"local sandboxes need Linux, this is {platform.system()}")
    spec = SandboxSpec(limits=SandboxLimits(memory_bytes=64 * MEBIBYTE, disk_bytes=MEBIBYTE))
    try:
        async with await backend.create_unchecked(spec) as sandbox:
            told = (await sandbox.exec(_PROBE)).stdout.decode("utf-8", "replace").splitlines()
    except SandboxError as e:
        return _nothing(str(e))
    probes = dict.fromkeys(_NEEDED, "no") | dict(line.split(" ", 1) for line in told)
    probes["uid"] = "yes" if probes["uid"] == "1000" else f"no, it is {probes['uid']}"
    probes["cgroup"] = groups_text
    failed = [name for name in _NEEDED if probes[name] != "yes"]
    has_group = groups_text.startswith("cgroup v")
    capabilities = {"fork", "snapshot", "call", "python"}
    return Enforcement(
        backend="local",
        level="namespaces+overlay" + ("+cgroup" if has_group else ""),
        is_safe=not failed,
        limits=_limits(groups_text if has_group else ""),
        capabilities=frozenset(capabilities | ({"users"} if os.geteuid() == 0 else set())),
        probes=probes,
        notes=tuple(_notes(failed, has_group=has_group)),
    )


def _limits(group: str) -> dict[str, str]:
    return {
        "wall_s": _WALL,
        "cpu_s": "rlimit for a process, the supervisor every 0.1 s for their sum",
        "memory_bytes": group or "rlimit (address space) for a process",
        "max_processes": group or "rlimit for the user",
        "disk_bytes": _SIZE,
        "max_files": _SIZE,
        "max_open_files": "rlimit",
        "file_bytes": "rlimit",
        "output_bytes": "the supervisor keeps no more",
    }


def _notes(failed: list[str], *, has_group: bool) -> list[str]:
    notes = [f"probe {name!r} failed: untrusted code must not run here" for name in failed]
    if not has_group:
        notes.append(
            "without a cgroup the memory limit holds for each process, not for their sum;"
            " run as root, or under a user session with delegated cgroups (systemd-run --user"
            " --scope -p Delegate=yes ...)"
        )
    if os.geteuid() != 0:
        notes.append("not root: every user inside is the same user outside")
    return notes


def _nothing(reason: str) -> Enforcement:
    return Enforcement(
        backend="local",
        level="none",
        is_safe=False,
        probes={"namespaces": reason},
        notes=(
            "user namespaces with overlay mounts are needed (Linux 5.11 or newer; on Ubuntu:"
            " sysctl kernel.apparmor_restrict_unprivileged_userns=0); or use backend 'docker'",
        ),
    )
