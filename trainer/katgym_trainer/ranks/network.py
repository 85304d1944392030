"""How ranks reach each other: each one's address and network interface, before torch asks for them.

    meet(store, number, num, timeout)  # sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME

Gloo takes the address that the host's own name has; where that is 127.0.1.1, as in Debian's
/etc/hosts, or nobody knows the name, it takes the loopback, and ranks on two machines do not find
each other. NCCL takes the first interface that is up. Not here: the process group (`ranks.py`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import psutil

NODE_ADDRESS = "KATGYM_NODE_ADDRESS"
"""Variable that a gang sets, as in `katgym.cluster.cluster_config`: a rank's node's address."""
GLOO, NCCL, NCCL_FAMILY = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"
_NAMES_S = 30.0
"""How long a name server that does not answer is asked again."""
_ANY_PORT = 1
_CONNECT_S = 10.0
_MAX_TOLD = 4
"""Pairs of ranks, and machines, that an error names."""


class MeetingError(RuntimeError):
    """Ranks do not reach each other; what it says is what their networks lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is on the network, as it tells the others.

    Example:
        Place(rank=1, host="node2", address="10.0.0.2", interfaces={"lo": ["127.0.0.1"],
              "eth0": ["10.0.0.2"]}, interface="eth0", port=40113)
    """

    rank: int
    host: str
    address: str
    """Its machine's, as the others see it; of `interface` the one that gloo takes."""
    interfaces: dict[str, list[str]]
    """Addresses of its machine."""
    interface: str = ""
    is_given: bool = False
    """Whether the user chose the interface."""
    port: int = 0
    """Where it listens while the ranks meet; 0: another rank of its machine does."""
    problem: str = ""
    """Why nobody reaches it there."""

    def __str__(self) -> str:
        on = f" on {self.interface}" if self.interface else ""
        on += f" by {GLOO}" if self.is_given else ""
        return f"rank {self.rank} ({self.host}, {self.address}{on})"

    def list_interfaces(self) -> str:
        """Return the machine's addresses in words, without those of one link alone."""
        there = [
            " ".join([name, *(address for address in found if "%" not in address)])
            for name, found in self.interfaces.items()
        ]
        return f"{self.host} has {', '.join(there)}"


def meet(store: Any, number: int, num: int, timeout: timedelta) -> None:
    """Wait for all ranks, choose each one's interface, and try that machines reach each other.

    store: of torch.distributed, which all ranks have reached. Raises `MeetingError` on all of them
    where one does not come, or does not reach another.
    """

    def share(key: str, value: Any) -> list[Any]:
        """Return every rank's value, by their numbers."""
        keys = [f"{key}-{other}" for other in range(num)]
        store.set(keys[number], json.dumps(value))
        try:
            store.wait(keys, timeout)
        except RuntimeError as e:
            missing = [str(other) for other, name in enumerate(keys) if not store.check([name])]
            raise MeetingError(
                f"no sign of rank {', '.join(missing)} within {timeout.total_seconds():g} s: look"
                f" for an error there. {advise([find_place(number)])}"
            ) from e
        return [json.loads(told) for told in store.multi_get(keys)]

    places = [Place(**told) for told in share("place", asdict(find_place(number)))]
    place = choose_interface(places[number], places, os.environ)
    listening = None
    if os.environ.get("LOCAL_RANK", "0") == "0" and not place.problem:
        try:
            listening = _listen(place.address)
            place = replace(place, port=listening.getsockname()[1])
        except OSError as e:
            place = replace(place, problem=f"nobody can listen there: {e.strerror}")
    try:
        places = [Place(**told) for told in share("chosen", asdict(place))]
        wrong = [f"{each}: {each.problem}" for each in places if each.problem]
        if not wrong:
            tried = share("tried", _try_all(place, places) if place.port else [])
            wrong = [text for each in tried for text in each]
    finally:
        if listening is not None:
            listening.close()
    if wrong:
        store.set(f"read-{number}", "")
        if number == 0:  # which may keep the store: the others have read it, too, before it ends
            store.wait([f"read-{other}" for other in range(num)], timeout)
        raise MeetingError(explain(wrong, places) if number == 0 else "rank 0 says why")


def find_place(number: int) -> Place:
    """Return where this rank is: at its node's address, or where it reaches the first rank from."""
    interfaces, problem = list_interfaces(), ""
    address = os.environ.get(NODE_ADDRESS, "")
    if not any(address in addresses for addresses in interfaces.values()):
        address, problem = _find_way(os.environ["MASTER_ADDR"])
    host = socket.gethostname()
    return Place(rank=number, host=host, address=address, interfaces=interfaces, problem=problem)


def choose_interface(
    place: Place, places: Sequence[Place], environ: MutableMapping[str, str]
) -> Place:
    """Return a place with its interface, and tell gloo and NCCL, unless the user has.

    The first rank's machine may know its own name as an address that nobody else reaches: then it
    takes the interface with the way to a rank elsewhere.
    """
    addresses = [other.address for other in places if other.address]
    elsewhere = [address for address in addresses if not _is_loopback(address)]
    if _is_loopback(place.address) and elsewhere:
        address, problem = _find_way(elsewhere[0])
        place = replace(place, address=address or place.address, problem=problem)
    has = [name for name, addresses in place.interfaces.items() if place.address in addresses]
    if has and not _is_loopback(place.address) and not environ.get(NCCL):
        environ[NCCL] = f"={has[0]}"  # on one machine NCCL needs no help
        if ":" in place.address and NCCL_FAMILY not in environ:
            environ[NCCL_FAMILY] = "AF_INET6"
    place = replace(place, is_given=bool(environ.get(GLOO)))
    if has and not place.is_given:
        environ[GLOO] = has[0]
    interface = environ.get(GLOO, "").split(",")[0]
    if not interface:
        return place  # what gloo chooses is tried by gloo alone
    if interface not in place.interfaces:
        problem = "there is no interface of this name with an address"
        return replace(place, interface=interface, problem=problem)
    return replace(place, interface=interface, address=place.interfaces[interface][0])


def explain(wrong: Sequence[str], places: Sequence[Place]) -> str:
    """Return what is wrong, what machines have, and what to do."""
    more = [f"and {len(wrong) - _MAX_TOLD} more"] * (len(wrong) > _MAX_TOLD)
    return f"{'; '.join([*wrong[:_MAX_TOLD], *more])}. {advise(places)}"


def advise(places: Sequence[Place]) -> str:
    """Return what machines have, and what to do so that they reach each other."""
    hosts = {place.host: place for place in reversed(places)}
    machines = [place.list_interfaces() for place in sorted(hosts.values(), key=lambda p: p.rank)]
    starter = "ray start" if NODE_ADDRESS in os.environ else "torchrun"
    return (
        f"{'; '.join(machines[:_MAX_TOLD])}. Let TCP connections between the machines through, on"
        f" all ports, or name the interface that joins them: export {GLOO}=NAME {NCCL}=NAME for"
        f" this command, or before {starter} on a machine where it has another name"
    )


def list_interfaces() -> dict[str, list[str]]:
    """Return the addresses of this machine's interfaces, in the order in which gloo finds them."""
    kinds = (socket.AF_INET, socket.AF_INET6)
    found = {
        name: [each.address for each in addresses if each.family in kinds]
        for name, addresses in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}


def find_route(host: str) -> str:
    """Return this machine's address that packets to a host come from; none is sent.

    Raises `OSError` where there is no way to it.
    """
    family, kind, _, _, there = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(there)
        return socket.getnameinfo(way.getsockname(), socket.NI_NUMERICHOST)[0]


def tell_first_rank() -> str:
    """Return where the first rank is waited for, in words; names are looked up.

    Raises `MeetingError` if it is not told, or its name is unknown on this machine.
    """
    told, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not (told and port):
        raise MeetingError("MASTER_ADDR and MASTER_PORT are to name the first rank's machine")
    until = time.monotonic() + _NAMES_S
    while True:
        try:
            found = socket.getaddrinfo(told, _ANY_PORT, type=socket.SOCK_STREAM)[0][4][0]
            break
        except socket.gaierror as e:
            if e.errno == socket.EAI_AGAIN and time.monotonic() < until:
                time.sleep(1)
                continue
            raise MeetingError(
                f"{socket.gethostname()} does not know MASTER_ADDR={told} ({e.strerror}): name the"
                " first rank's machine by its address, by torchrun's --master-addr or --local-addr"
            ) from e
    name = told if found == told else f"{told} ({found} on {socket.gethostname()})"
    return f"MASTER_ADDR={name}, port {port}"


def _find_way(host: str) -> tuple[str, str]:
    """Return this machine's address that reaches a host, or none and why."""
    try:
        return find_route(host), ""
    except OSError as e:
        return "", f"no way to {host}: {e.strerror}"


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


def _listen(address: str) -> socket.socket:
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind)
    try:
        listening.bind(where)
        listening.listen(socket.SOMAXCONN)  # nobody accepts: to be connected is enough
    except OSError:
        listening.close()
        raise
    return listening


def _try_all(place: Place, places: Sequence[Place]) -> list[str]:
    """Return why this rank does not reach others, one on each machine."""
    others = [other for other in places if other.port and other.rank != place.rank]
    with ThreadPoolExecutor(32) as threads:
        tried = list(threads.map(lambda other: _try_one(place, other), others))
    return [
        f"{place} cannot reach {other}: {why}"
        for other, why in zip(others, tried, strict=True)
        if why
    ]


def _try_one(place: Place, other: Place) -> str:
    """Return why a rank does not reach another; nothing if it does."""
    if (":" in place.address) != (":" in other.address):
        return "one address is IPv4 and one IPv6; of an interface gloo takes the first"
    try:
        socket.create_connection((other.address, other.port), timeout=_CONNECT_S).close()
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except OSError as e:
        return e.strerror or str(e)
    return ""
