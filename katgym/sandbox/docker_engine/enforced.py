"""Limits that containers of an engine enforce, from what the engine says about itself.

Not here: setting it (`settings.py`).
"""

from __future__ import annotations

from katgym.errors import UsageError
from katgym.sandbox.base import Enforcement
from katgym.sandbox.docker_engine.settings import EngineFacts
from katgym.sandbox.limits import SandboxLimits

_NOTES = (
    "the workspace and /tmp are memory and count towards memory_bytes, beside the layers' own size;"
    " disk_bytes is lowered so that both leave room for processes",
    "every command runs as the one user 'agent' (uid 1000), like the supervisor, which no process"
    " of it can signal, trace or look into",
    "peak_memory_bytes is that of the largest process",
    "4 processes are added to max_processes, for the supervisor and a guardian per command",
)


def list_limits(facts: EngineFacts) -> dict[str, str]:
    """Return field of `SandboxLimits` -> how it is enforced."""
    group = f"cgroup v{facts.cgroup_version}"
    found = {
        "wall_s": "supervisor",
        "cpu_s": "watchdog every 0.1 s, over all processes of the command; rlimit",
        "disk_bytes": "tmpfs size",
        "max_files": "tmpfs nr_inodes",
        "max_open_files": "rlimit",
        "file_bytes": "rlimit",
        "output_bytes": "supervisor",
    }
    if facts.has_memory_limit:
        found["memory_bytes"] = group
    if facts.has_pids_limit:
        found["max_processes"] = group
    return found


def check_limits(facts: EngineFacts, limits: SandboxLimits) -> None:
    """Raise `UsageError` for a limit that this engine cannot enforce."""
    known = list_limits(facts)
    for name in ("memory_bytes", "max_processes"):
        if getattr(limits, name) is not None and name not in known:
            raise UsageError(
                f"this Docker Engine cannot limit {name} (its cgroup controller is missing); pass"
                f" {name}=None to go without, or mount the controller"
            )


def describe(
    facts: EngineFacts | None, problem: str, cpus: float | None, *, has_oom_score: bool = True
) -> Enforcement:
    """Return what is enforced; without an engine nothing is, and nothing can be created."""
    if facts is None:
        return Enforcement(
            backend="docker", level="none", is_safe=False, probes={"engine": problem}
        )
    probes = {
        "engine": "yes",
        "memory limit": "yes" if facts.has_memory_limit else "no cgroup controller",
        "swap limit": "yes" if facts.has_swap_limit else "no swap accounting in the kernel",
        "pids limit": "yes" if facts.has_pids_limit else "no cgroup controller",
        "cpu limit": "yes" if facts.has_cpu_limit else "no cgroup controller",
        "seccomp": "yes" if facts.has_seccomp else "the engine was built or started without",
    }
    notes = list(_NOTES)
    if cpus is not None and facts.has_cpu_limit:
        notes.append(f"a container uses at most {min(cpus, facts.num_cpus):g} CPUs")
    if not has_oom_score or facts.is_rootless:
        notes.append(
            "the engine cannot spare the supervisor when memory runs out: an agent that means to"
            " may end its own sandbox, which is an infrastructure error"
        )
    if not facts.has_swap_limit:
        notes.append("swap is not counted: memory_bytes limits what is not swapped out")
    return Enforcement(
        backend="docker",
        level="container" if facts.has_seccomp else "container without seccomp",
        is_safe=facts.has_seccomp,
        limits=list_limits(facts),
        capabilities=frozenset({"fork", "snapshot", "image", "folders"}),
        probes=probes,
        notes=tuple(notes),
    )
