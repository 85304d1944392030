"""The settings of a sandbox's container: what isolates it and what limits it.

Not here: calling the engine (`engine.py`).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.spec import SandboxSpec

AGENT_UID = 1000
OOM_SCORE = -900
SHM_BYTES = 16 * MEBIBYTE
HOME = "/home/agent"
WIPED = ("/tmp", HOME, "/dev/shm", "/dev/mqueue")
_MAX_HOME_BYTES = 64 * MEBIBYTE
_SUPERVISOR_PROCESSES = 4
"""Room for the supervisor and the guardians of three commands that run at the same time."""
_PAGE = mmap.PAGESIZE
# Reads the length of the program, then the program, which takes over.
BOOT = """\
import os, sys
def take(num):
    data = b""
    while len(data) < num:
        part = os.read(0, num - len(data))
        if not part:
            sys.exit("no program came")
        data += part
    return data
if sys.version_info < (3, 8):
    sys.exit("katgym: the image's python3 is %d.%d, 3.8 is needed" % sys.version_info[:2])
exec(compile(take(int.from_bytes(take(4), "big")), "<supervisor>", "exec"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says about itself."""

    version: str
    num_cpus: int
    has_memory_limit: bool
    has_swap_limit: bool
    has_pids_limit: bool
    has_cpu_limit: bool
    has_seccomp: bool
    is_rootless: bool
    cgroup_version: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """Everything that a container's settings depend on."""

    spec: SandboxSpec
    image_id: str
    labels: Mapping[str, str]
    facts: EngineFacts
    num_base_bytes: int
    """Of the layers, in whole pages."""
    num_base_files: int
    cpus: float | None
    runtime: str | None
    python: str = "python3"


def in_pages(size: int) -> int:
    """Return how much memory a file of this size takes."""
    return -(-size // _PAGE) * _PAGE


def disk_bytes(limits: SandboxLimits, *, num_folders: int = 0) -> int | None:
    """Return the size of the workspace, and of /tmp, beside what the layers take; None: unlimited.

    Both are memory, and count towards its limit: together they leave some of it for processes, or a
    full disk would end in the supervisor's being killed.
    """
    if limits.memory_bytes is None:
        return limits.disk_bytes
    homes = (1 + num_folders) * home_bytes(limits)
    reserve = min(64 * MEBIBYTE, limits.memory_bytes // 4) + SHM_BYTES + homes
    room = max(_PAGE, (limits.memory_bytes - reserve) // 2)
    return room if limits.disk_bytes is None else min(room, limits.disk_bytes)


def home_bytes(limits: SandboxLimits) -> int:
    """Return the size of the home directory, and of each further folder: memory as well."""
    bounds = [_MAX_HOME_BYTES]
    if limits.memory_bytes is not None:
        bounds.append(max(_PAGE, limits.memory_bytes // 16))
    if limits.disk_bytes is not None:
        bounds.append(limits.disk_bytes)
    return min(bounds)


def container_config(plan: ContainerPlan) -> dict[str, Any]:
    """Return the body of the engine's request to create the container."""
    return {
        "Image": plan.image_id,
        "Entrypoint": [plan.python, "-I", "-S", "-c", BOOT],
        "Cmd": [],
        "User": f"{AGENT_UID}:{AGENT_UID}",
        "WorkingDir": "/",
        "Labels": dict(plan.labels),
        "OpenStdin": True,
        "StdinOnce": True,  # the supervisor sees the end when katgym is gone
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(plan),
    }


def _host_config(plan: ContainerPlan) -> dict[str, Any]:
    limits = plan.spec.limits
    ulimits: dict[str, int | None] = {
        "core": 0,
        # The supervisor holds some for every command under way; commands get their own limit.
        "nofile": limits.max_open_files and max(limits.max_open_files, 4096),
    }
    config: dict[str, Any] = {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        "CgroupnsMode": "private" if plan.facts.cgroup_version == "2" else "host",
        "ShmSize": SHM_BYTES,
        "Tmpfs": _tmpfs(plan),
        "LogConfig": {"Type": "none", "Config": {}},
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "Ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in ulimits.items() if v is not None],
    }
    if not plan.facts.is_rootless:
        config["OomScoreAdj"] = OOM_SCORE  # the supervisor goes last; its commands raise theirs
    if limits.memory_bytes is not None:
        total = limits.memory_bytes + plan.num_base_bytes
        config["Memory"] = total
        if plan.facts.has_swap_limit:
            config["MemorySwap"] = total
    if limits.max_processes is not None:
        config["PidsLimit"] = limits.max_processes + _SUPERVISOR_PROCESSES
    if plan.cpus is not None and plan.facts.has_cpu_limit:
        config["NanoCpus"] = int(min(plan.cpus, plan.facts.num_cpus) * 1e9)
    if plan.runtime is not None:
        config["Runtime"] = plan.runtime
    return config


def _tmpfs(plan: ContainerPlan) -> dict[str, str]:
    limits = plan.spec.limits
    room = disk_bytes(limits, num_folders=len(plan.spec.folders))
    workdir = ["exec", "mode=0755", f"uid={AGENT_UID}", f"gid={AGENT_UID}"]
    tmp = ["exec", "mode=1777"]
    home = ["exec", "mode=0755", f"uid={AGENT_UID}", f"gid={AGENT_UID}"]
    home.append(f"size={home_bytes(limits)}")
    if room is not None:
        workdir.append(f"size={room + plan.num_base_bytes}")
        tmp.append(f"size={room}")
    if limits.max_files is not None:
        workdir.append(f"nr_inodes={limits.max_files + plan.num_base_files + 1}")
        tmp.append(f"nr_inodes={limits.max_files + 1}")
        home.append(f"nr_inodes={limits.max_files + 1}")
    return {
        plan.spec.workdir: ",".join(workdir),
        "/tmp": ",".join(tmp),
        HOME: ",".join(home),
        **dict.fromkeys(plan.spec.folders, ",".join(home)),
    }
