"""Checks of a Ray cluster from each of its nodes, before a run is given to it.

    findings = check_nodes("auto")

`judge` makes findings of facts, without a cluster. Not here: how facts are gathered
(`node_survey.py`); how findings are printed, and checks of one machine
(`katgym.cli.environments.doctor_command`); GPUs, NCCL, and vLLM's environment, which no check is
about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from katgym.cluster.node_survey import (
    GLOO,
    LOOKUP_S,
    Node,
    NodeFacts,
    Survey,
    gloo_address,
    survey_nodes,
)
from katgym.cluster.ray_cluster import connected
from katgym.system.listening import is_loopback

_CLOCK_S = 5.0
_FIRST = ("torch", "transformers", "ray", "vllm", "numpy")
_NUM_PACKAGES = 5

Verdict = tuple[str, str]
"""What was found, and what to do about it; "" if it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """One check of one node.

    Example:
        NodeFinding(name="clocks", node="dee935e1", host="node2", address="192.0.2.2",
                    is_working=True, detail="+0.00 s (± 0.01 s)", fix="")
    """

    name: str
    node: str
    """Ray's id of it, as far as messages about ranks show it."""
    host: str
    address: str
    is_working: bool
    detail: str
    fix: str
    """Empty when it works."""


def check_nodes(address: str) -> list[NodeFinding]:
    """Check a cluster from all its nodes at once; raises as `connected`."""
    with connected(address):
        survey = asyncio.run(survey_nodes())
    return judge(survey)


def judge(survey: Survey) -> list[NodeFinding]:
    """Return a finding for each check and node; for one without facts only the reason."""
    found = []
    for name, check in CHECKS.items():
        for node in survey.nodes:
            if node.error and check is not _node:
                continue
            detail, fix = check(node, survey)
            who = {"node": node.node[:8], "host": node.host, "address": node.address}
            found.append(NodeFinding(name=name, **who, is_working=not fix, detail=detail, fix=fix))
    return found


def list_some(items: Collection[str], most: int = 8, *, joint: str = ", ") -> str:
    """Return items as words: the first ones, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return joint.join([*items][:most]) + more


def _node(node: Node, survey: Survey) -> Verdict:
    error = node.error
    if not error:
        return f"{node.num_cpus:g} CPU, {node.num_gpus:g} GPU, {_python(node.facts)}", ""
    if "ImportError" in error or "ModuleNotFoundError" in error:
        katgym = f"'katgym[cluster]=={survey.here.versions.get('katgym')}'"
        return error, f"pip install {katgym} there, for the Python of its `ray start`"
    if "does not answer" in error:
        return error, "see whether it is up and its network works: ping, ray status"
    return error, "look into /tmp/ray/session_latest/logs there"


def _python(facts: NodeFacts) -> str:
    return f"Python {facts.python}, katgym {facts.versions.get('katgym', 'not installed')}"


def _versions(node: Node, survey: Survey) -> Verdict:
    here, there = survey.here, node.facts

    def importance(name: str) -> tuple[bool, int, str]:
        place = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return not name.startswith("katgym"), place, name

    told, fixes, pinned, surplus = [], [], [], []
    if here.python != there.python:
        told.append(f"Python {there.python} (here {here.python})")
        fixes.append(f"install Python {here.python}")
    for name in sorted(here.versions.keys() | there.versions.keys(), key=importance):
        wanted, found = here.versions.get(name), there.versions.get(name)
        is_missing = wanted is None or found is None
        if wanted == found or (is_missing and name not in here.needed | there.needed):
            continue
        told.append(f"{name} {found or 'missing'} (here {wanted or 'missing'})")
        if wanted is None:
            surplus.append(name)
        else:
            pinned.append(f"{name}=={wanted}")
    if len(pinned) > _NUM_PACKAGES:
        fixes.append("pip freeze > versions.txt here, pip install -r versions.txt")
    elif pinned:
        fixes.append(f"pip install {' '.join(pinned)}")
    if surplus:
        fixes.append(f"pip uninstall {' '.join(surplus)}")
    if not told:
        return _python(there), ""
    return list_some(told, _NUM_PACKAGES), f"there: {'; '.join(fixes)}"


def _folder(node: Node, survey: Survey) -> Verdict:
    if node.folder_error:
        return node.folder_error, "give the command in a folder that all nodes share (NFS ...)"
    return f"reads and writes {survey.folder!r}", ""


def _names(node: Node, survey: Survey) -> Verdict:
    facts, host = node.facts, node.host
    # As FolderLease: machines of one kernel see each other's locks, others go by their names.
    same = [o for o in survey.nodes if o.host == host and not o.error]
    if any(o is not node and not facts.boot == o.facts.boot != "" for o in same):
        addresses = list_some(dict.fromkeys(o.address for o in same))
        told = f"{host!r} is the hostname of {addresses}: leases of folders take them for one"
        return told, "hostnamectl set-hostname with a name for each, then ray start again"
    if facts.is_lookup_slow:
        told = f"{host!r}: looking it up takes more than {LOOKUP_S:g} s, and torch does so, too"
        return told, f"mend /etc/resolv.conf there, or add '{node.address} {host}' to /etc/hosts"
    if node.address in facts.resolved:
        return "the hostname is the address", ""
    known = f"is {list_some(facts.resolved)}" if facts.resolved else "is unknown"
    return f"the hostname {known} there; katgym uses addresses", ""


def _ports(node: Node, survey: Survey) -> Verdict:
    fix = "let TCP through between nodes, all ports: torch, servers and workers take free ones"
    if not node.facts.ports:
        return f"cannot listen at its address: {node.facts.listen_error}", fix
    asked = [other for other in survey.nodes if not other.error]
    listening = {other.node for other in asked if other.facts.ports}
    # A node that reaches none of several is told so itself; it is no fault of theirs.
    lone = [o for o in asked if len(o.unreached) > 1 and {o.node, *o.unreached} >= listening]
    sources: dict[str, list[str]] = {}
    for other in asked:
        if node.node in other.unreached and other not in lone:
            sources.setdefault(other.unreached[node.node], []).append(other.address)
    told = [f"not reached from {list_some(from_)}: {reason}" for reason, from_ in sources.items()]
    if node in lone:
        told.append(f"reaches no other node: {list_some(dict.fromkeys(node.unreached.values()))}")
    if told:
        return "; ".join(told), fix
    if any(node.node in other.unreached for other in lone):
        return "reached from every node that reaches others", ""
    return "reached from every other node" if len(asked) > 1 else "there is no other node", ""


def _interfaces(node: Node, survey: Survey) -> Verdict:
    facts, address, start = node.facts, node.address, "ray start --node-ip-address="
    owner = next((name for name, has in facts.interfaces.items() if address in has), "")
    others = [
        f"{name} {' '.join(has)}"
        for name, has in facts.interfaces.items()
        if name != owner and not all(map(is_loopback, has))
    ]
    there = f"; others: {list_some(others)}" if others else ""
    if not owner:
        return f"no interface has {address}{there}", f"{start}ADDRESS there, of one of these"
    if is_loopback(address) and len({other.address for other in survey.nodes}) > 1:
        return f"{address} is reached from its own machine alone{there}", f"{start}ADDRESS there"
    settings = {**facts.variables, **survey.here.variables}
    taken = _gloo_address(node, survey)
    first = _gloo_address(next(other for other in survey.nodes if not other.error), survey)
    if (":" in taken) != (":" in first):
        return f"{taken} is not of the family of {first}{there}", f"{start}ADDRESS of one family"
    told = "".join(f"; {name}={value}" for name, value in settings.items())
    for name, value in settings.items():
        if not _is_fitting(name, value, facts.interfaces):
            wrong = f"{name}={value}, but the interfaces are {list_some(facts.interfaces)}"
            return wrong, f"unset {name}, or name interfaces that each node has"
    gloo = f"; gloo takes {taken}" if taken != address else ""
    return f"{owner} has the address{gloo}{there}{told}", ""


def _gloo_address(node: Node, survey: Survey) -> str:
    told = survey.here.variables.get(GLOO) or node.facts.variables.get(GLOO, "")
    return gloo_address(node.address, node.facts.interfaces, told)


def _is_fitting(name: str, value: str, interfaces: Collection[str]) -> bool:
    """Return whether all that gloo is told is there, or any that NCCL may take."""
    if name == GLOO:
        return all(part in interfaces for part in value.split(","))
    parts = tuple(value.lstrip("^=").split(","))
    is_exact, is_excluded = value.lstrip("^").startswith("="), value.startswith("^")
    fitting = [n for n in interfaces if (n in parts if is_exact else n.startswith(parts))]
    return len(fitting) < len(interfaces) if is_excluded else bool(fitting)


def _clocks(node: Node, survey: Survey) -> Verdict:
    ahead_s, error_s = node.clock
    told = f"{round(ahead_s, 2) + 0.0:+.2f} s (± {max(error_s, 0.01):.2f} s)"
    if abs(ahead_s) - error_s <= _CLOCK_S:
        return told, ""
    why = "leases, sessions' deadlines and `katgym cluster status` compare times of machines"
    return f"{told} beside here; {why}", "set the clock there: chrony or systemd-timesyncd"


CHECKS: Mapping[str, Callable[[Node, Survey], Verdict]] = {
    "node": _node,
    "versions": _versions,
    "shared folder": _folder,
    "names": _names,
    "ports": _ports,
    "interfaces": _interfaces,
    "clocks": _clocks,
}
"""Name of a check -> how a node is judged."""
