"""Facts of a Ray cluster's nodes, gathered by an actor on each of them at the same time.

    survey = asyncio.run(survey_nodes())  # of the cluster that this process is connected to

Not here: what is judged of them (`node_checks.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import ipaddress
import logging
import os
import platform
import re
import socket
import time
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from katgym.cluster.ray_cluster import ray
from katgym.system.steady_clock import boot_id

logger = logging.getLogger(__name__)

T = TypeVar("T")
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOOKUP_S = 5.0
_ANSWER_S = 60.0
"""Within this time a node answers: its actor has to start, and to import katgym."""
_TELL_S = 10.0
_CONNECT_S = 5.0
_SHARE_S = 10.0
"""So long a file is looked for that another machine wrote: NFS may show it late."""
_AGAIN_S = 0.5
_FOLDER_S = 20.0
"""Within this time a folder answers; a file system whose server is away never does."""
_END_S = 5.0
_NUM_PINGS = 5
_CAUSE = re.compile(r"^\s*[\w.]*(?:Error|Exception): .+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a process tells of itself and its machine.

    Example:
        NodeFacts(host="node2", boot="6f1c...", python="3.11.7", versions={"katgym": "0.1.0"},
                  interfaces={"lo": ("127.0.0.1",), "e0": ("192.0.2.2", "fe80::1")},
                  ports={"192.0.2.2": 40113})
    """

    host: str = ""
    boot: str = ""
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of every distribution, by its name in lower case with hyphens."""
    needed: frozenset[str] = frozenset()
    """katgym, its plugins, and what one of them or an extra of theirs, except dev, requires."""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Addresses of each that has any, IPv4 first."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those that say which interfaces gloo and NCCL take."""
    resolved: tuple[str, ...] = ()
    """Addresses that the host's name has there."""
    is_lookup_slow: bool = False
    ports: Mapping[str, int] = field(default_factory=dict)
    """Where it listens: at its address, and at that which gloo takes; none with `listen_error`."""
    listen_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that Ray lists as alive, and what was found of it.

    Example:
        Node(node="dee935e1...", host="node2", address="192.0.2.2", num_cpus=8, num_gpus=1)
    """

    node: str
    """Ray's id of it."""
    host: str
    address: str
    num_cpus: float = 0
    num_gpus: float = 0
    facts: NodeFacts = NodeFacts()
    error: str = ""
    """Why nothing else is known of it."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """Id of a node that it cannot connect to -> the reason."""
    folder_error: str = ""
    """What does not work with the command's folder."""
    clock: tuple[float, float] = (0.0, 0.0)
    """Seconds that its clock is ahead of the command's, and how much more or less it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Facts of a whole cluster.

    Example:
        Survey(here=NodeFacts(python="3.11.7"), folder="/shared", nodes=[Node(...), Node(...)])
    """

    here: NodeFacts
    """Of the command."""
    folder: str
    """That the command is given in."""
    nodes: Sequence[Node]
    """The command's own comes first."""


def gather_facts() -> NodeFacts:
    """Return what this process sees without asking anybody."""
    versions: dict[str, str] = {}
    needed: set[str] = set()
    for found in importlib.metadata.distributions():
        name = _normal(found.metadata["Name"] or "")
        if not name or name in versions:  # what stands later on the path is not imported
            continue
        versions[name] = found.version
        if any(entry.group == "katgym" for entry in found.entry_points):
            required = [r for r in found.requires or () if not re.search(r"extra == .dev\b", r)]
            needed |= {name, *(_normal(re.split(r"[^\w.-]", text)[0]) for text in required)}
    addresses = {
        name: tuple(_plain(a.address) for a in told if a.family.name in ("AF_INET", "AF_INET6"))
        for name, told in psutil.net_if_addrs().items()
    }
    return NodeFacts(
        host=socket.gethostname(),
        boot=boot_id(),
        python=platform.python_version(),
        versions=versions,
        needed=frozenset(needed),
        interfaces={name: told for name, told in addresses.items() if told},
        variables={name: os.environ[name] for name in (GLOO, NCCL) if os.environ.get(name)},
    )


def gloo_address(address: str, interfaces: Mapping[str, tuple[str, ...]], told: str) -> str:
    """Return the address that gloo takes: the first one of the interface that ranks tell it.

    address: the node's, whose interface it is unless `told` (GLOO_SOCKET_IFNAME) names others.
    """
    name = told.split(",")[0]
    taken = [has[0] for n, has in interfaces.items() if (n == name if name else address in has)]
    return taken[0] if taken else address


class NodeProbe:
    """What Ray runs on a node: it looks around there."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._answer: Path | None = None

    async def gather(self, address: str, interface: str) -> NodeFacts:
        """Return the node's facts; from then on it listens at its address, and at gloo's.

        interface: GLOO_SOCKET_IFNAME of the command, whose ranks have it; "" for the node's own.
        """
        facts = await asyncio.to_thread(gather_facts)
        told = interface or facts.variables.get(GLOO, "")
        where = sorted({address, gloo_address(address, facts.interfaces, told)})
        try:
            self._server = await asyncio.start_server(lambda _, writer: writer.close(), where, 0)
            names = (listening.getsockname() for listening in self._server.sockets)
            facts = replace(facts, ports={_plain(name[0]): name[1] for name in names})
        except OSError as e:
            facts = replace(facts, listen_error=_reason(e))
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await asyncio.get_running_loop().getaddrinfo(facts.host, None)
        except TimeoutError:
            return replace(facts, is_lookup_slow=True)
        except (OSError, UnicodeError):  # nobody knows it
            return facts
        return replace(facts, resolved=tuple(sorted({_plain(str(told[4][0])) for told in found})))

    async def connect(self, places: Sequence[tuple[str, str, int]]) -> dict[str, str]:
        """Connect to nodes, all at once; return those that cannot be reached, and why.

        places: node, address and port.
        """

        async def connect(node: str, address: str, port: int) -> str:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    _, writer = await asyncio.open_connection(address, port)
            except OSError as e:
                return f"{_reason(e)} at {address}"
            writer.close()
            return ""

        reasons = await asyncio.gather(*(connect(*place) for place in places))
        return {place[0]: told for place, told in zip(places, reasons, strict=True) if told}

    async def now_s(self) -> float:
        """Return the node's Unix time."""
        return time.time()

    async def share(self, file: Path, token: str, answer: Path) -> str:
        """Read what the command wrote, and answer in a file; return what does not work."""
        folder = str(file.parent)
        try:
            async with asyncio.timeout(_FOLDER_S):
                if reason := await _wait_for(file, token):
                    if not await asyncio.to_thread(file.parent.is_dir):
                        return f"there is no {folder!r}"
                    return f"what is written to {folder!r} here is not seen there: {reason}"
                self._answer = answer
                await asyncio.to_thread(answer.write_text, token, "utf-8")
        except TimeoutError:
            return f"{folder!r} does not answer there within {_FOLDER_S:g} s"
        except OSError as e:
            return f"{folder!r} cannot be written to from there: {_reason(e)}"
        return ""

    async def close(self) -> None:
        """Listen no more, and remove the answer."""
        if self._server is not None:
            self._server.close()
        if self._answer is not None:
            await asyncio.to_thread(self._answer.unlink, missing_ok=True)


async def survey_nodes() -> Survey:
    """Ask every node that Ray lists as alive, and leave nothing behind."""
    own = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(
            node=told["NodeID"],
            host=told["NodeManagerHostname"],
            address=_plain(told["NodeManagerAddress"]),
            num_cpus=told["Resources"].get("CPU", 0),
            num_gpus=told["Resources"].get("GPU", 0),
        )
        for told in ray.nodes()
        if told["Alive"]
    ]
    nodes.sort(key=lambda node: (node.node != own, len(node.address), node.address))
    token, folder_error = uuid.uuid4().hex, ""
    file = Path.cwd() / f".katgym-doctor-{token[:8]}"
    probes: dict[str, Any] = {}
    known: list[Node] = []

    async def look(node: Node) -> Node:
        """Ask for what takes other nodes, or the command."""
        probe, pings = probes[node.node], []
        for _ in range(_NUM_PINGS):
            began_s = time.time()
            there_s, ended_s = await probe.now_s.remote(), time.time()
            pings.append(((ended_s - began_s) / 2, there_s - (began_s + ended_s) / 2))
        error_s, ahead_s = min(pings)
        places = [(o.node, *at) for o in known if o is not node for at in o.facts.ports.items()]
        unreached, told = await probe.connect.remote(places), folder_error
        if not told:
            answer = file.with_name(f"{file.name}-{node.node[:8]}")
            told = await probe.share.remote(file, token, answer)
            if not told:
                unseen = await _wait_for(answer, token)
                told = unseen and f"what is written to {str(file.parent)!r} there is not seen here"
        clock = (ahead_s, error_s)
        return replace(node, clock=clock, unreached=unreached, folder_error=told)

    try:
        try:
            await asyncio.to_thread(file.write_text, token, "utf-8")
        except OSError as e:
            folder_error = f"{str(file.parent)!r} cannot be written to from here: {_reason(e)}"
        for node in nodes:
            affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options = {"num_cpus": 0, "scheduling_strategy": affinity(node.node, soft=False)}
            probes[node.node] = ray.remote(NodeProbe).options(**options).remote()
        told = os.environ.get(GLOO, "")
        asked = [probes[node.node].gather.remote(node.address, told) for node in nodes]
        asking = [asyncio.create_task(_ask(answer)) for answer in asked]
        if late := (await asyncio.wait(asking, timeout=_TELL_S))[1]:
            told = "%d of %d nodes have not answered yet; they have %g s more"
            logger.warning(told, len(late), len(nodes), _ANSWER_S - _TELL_S)
        answers = zip(nodes, await asyncio.gather(*asking), strict=True)
        nodes = [
            replace(node, host=facts.host, facts=facts) if facts else replace(node, error=error)
            for node, (facts, error) in answers
        ]
        known += [node for node in nodes if not node.error]
        looks = await asyncio.gather(*(_ask(look(node)) for node in known))
        for node, (found, error) in zip(known, looks, strict=True):
            nodes[nodes.index(node)] = found or replace(node, error=error)
        return Survey(here=gather_facts(), folder=str(file.parent), nodes=nodes)
    finally:
        if known:
            closing = [asyncio.ensure_future(probes[n.node].close.remote()) for n in known]
            for task in (await asyncio.wait(closing, timeout=_END_S))[0]:
                task.exception()  # of a node that was lost
        for probe in probes.values():
            ray.kill(probe)
        for path in [*file.parent.glob(f"{file.name}*")]:
            with contextlib.suppress(OSError):  # of another user, in a folder like /tmp
                path.unlink()


async def _ask(asking: Awaitable[T]) -> tuple[T | None, str]:
    """Return an answer, or why there is none, on one line."""
    try:
        return await asyncio.wait_for(asking, _ANSWER_S), ""
    except ray.exceptions.RayError as e:
        lost = (ray.exceptions.ActorUnavailableError, ray.exceptions.ActorUnschedulableError)
        if isinstance(e, lost) or "node has died" in str(e):
            return None, "it does not answer any more"
        lines = _CAUSE.findall(str(e)) or str(e).splitlines()[:1]
        return None, lines[-1].strip()
    except TimeoutError:
        return None, f"it does not answer within {_ANSWER_S:g} s"


async def _wait_for(file: Path, token: str) -> str:
    """Return why a file does not hold a token within `_SHARE_S`; "" if it does."""
    until_s = time.monotonic() + _SHARE_S
    while True:
        try:
            is_there = await asyncio.to_thread(file.read_bytes) == token.encode()
            reason = "" if is_there else "it holds something else"
        except OSError as e:
            reason = _reason(e)
        if not reason or time.monotonic() > until_s:
            return reason
        await asyncio.sleep(_AGAIN_S)


def _reason(error: OSError) -> str:
    """Return what the system says; asyncio's own timeouts have no number."""
    return os.strerror(error.errno).lower() if error.errno else "timed out"


def _plain(address: str) -> str:
    """Return an address as everybody writes it, without its interface."""
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
