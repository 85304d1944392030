"""Ranks on pretended machines with several networks: who meets, what is said of who does not."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from pretended_hosts import PretendedHosts, pretended_hosts
from test_train_ranks import write_config
from waiting import HANG_S

from katgym_trainer.ranks import network
from katgym_trainer.ranks.network import MeetingError, Place, choose_interface

SCRIPT = str(Path(__file__).with_name("joining_ranks.py"))
PORTS = itertools.count(29600)


class Machines:
    """Three machines; on each is a process for each rank that joins as often as it is told."""

    def __init__(self, hosts: PretendedHosts) -> None:
        self.hosts, self.addresses = hosts, hosts.addresses
        self._processes: dict[tuple[int, int], subprocess.Popen[str]] = {}

    def join(
        self, master: str, *ranks: int, each: Sequence[dict[str, str]] = ()
    ) -> list[dict[str, Any]]:
        """Return what ranks say that have tried to meet.

        ranks: the machine of each. each: variables of each.
        """
        port, processes = str(next(PORTS)), []
        for number, host in enumerate(ranks):
            local = ranks[:number].count(host)
            process = self._find_process(host, local)
            told = {"MASTER_ADDR": master, "MASTER_PORT": port, "WORLD_SIZE": str(len(ranks))}
            told |= {"RANK": str(number), "LOCAL_RANK": str(local)} | (each[number] if each else {})
            assert process.stdin is not None
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            processes.append(process)
        return [json.loads(_read(process)) for process in processes]

    def _find_process(self, host: int, local: int) -> subprocess.Popen[str]:
        if (host, local) not in self._processes:
            process = self.hosts.start(host, "python", SCRIPT, stdin=subprocess.PIPE)
            self._processes[host, local] = process
            assert _read(process) == "ready\n"
        return self._processes[host, local]


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pretended_hosts(3) as hosts:
        yield Machines(hosts)


def have_met(
    told: list[dict[str, Any]], gloo: str, nccl: str | None, family: str | None = None
) -> bool:
    """Return whether all ranks met, on these interfaces."""
    wanted = {network.GLOO: gloo, network.NCCL: nccl, network.NCCL_FAMILY: family}
    return told == [{"ranks": list(range(len(told)))} | wanted] * len(told)


@pytest.mark.slow
def test_ranks_meet_whatever_hosts_call_themselves(machines: Machines) -> None:
    hosts, addresses = machines.hosts, machines.addresses
    all_names = [f"{address} node{host + 1}" for host, address in enumerate(addresses)]
    for lines in (all_names, ["127.0.1.1 node{}"], []):
        for host in range(3):
            hosts.write_names(host, *(line.format(host + 1) for line in lines))
        told = machines.join(addresses[0], 0, 1, 2)
        assert have_met(told, "e0", "=e0"), told

    # The first rank's machine is named, and knows itself alone by another address than others do.
    hosts.write_names(0, "127.0.1.1 node1")
    hosts.write_names(1, f"{addresses[0]} node1")
    told = machines.join("node1", 0, 0, 1)
    assert have_met(told, "e0", "=e0"), told


@pytest.mark.slow
def test_ranks_meet_on_the_interface_of_their_nodes_address(machines: Machines) -> None:
    hosts = machines.hosts
    for host in range(3):
        hosts.add_interface(host, "a9", f"203.0.113.{host + 1}/24", is_joined=False)
        hosts.add_interface(host, "e1", f"10.9.9.{host + 1}/24", "fd00:9::1/64")
        hosts.add_interface(host, "e6", f"fd00:6::{host + 1}/64")
    told = machines.join("10.9.9.1", 0, 1, 2)
    assert have_met(told, "e1", "=e1"), told
    told = machines.join("fd00:6::1", 0, 1, 2)
    assert have_met(told, "e6", "=e6", "AF_INET6"), told
    # Where Ray placed them, it is the one of Ray's address, whatever way leads to the first rank.
    told = machines.join(
        machines.addresses[0], 0, 1, each=[{network.NODE_ADDRESS: f"10.9.9.{n}"} for n in (1, 2)]
    )
    assert have_met(told, "e1", "=e1"), told
    # An address that no interface has, as behind a translator of addresses.
    away = [{network.NODE_ADDRESS: f"192.0.2.{n}"} for n in (1, 2)]
    told = machines.join(machines.addresses[0], 0, 1, each=away)
    assert have_met(told, "e0", "=e0"), told
    # What the user says stays.
    own = {network.GLOO: "e6", network.NCCL: "^a9", network.NCCL_FAMILY: "AF_INET"}
    told = machines.join(machines.addresses[0], 0, 1, each=[own, own])
    assert have_met(told, "e6", "^a9", "AF_INET"), told


@pytest.mark.slow
def test_ranks_of_one_machine_without_a_network_meet(machines: Machines) -> None:
    machines.hosts.write_names(2)
    machines.hosts.ip(2, "link set e0 down")
    told = machines.join("127.0.0.1", 2, 2)
    assert have_met(told, "lo", None), told
    told = machines.join("localhost", 2, 2, each=[{network.NODE_ADDRESS: "127.0.0.1"}] * 2)
    assert have_met(told, "lo", None), told
    machines.hosts.ip(2, "link set e0 up")


@pytest.mark.slow
def test_who_cannot_meet_is_told_with_addresses_interfaces_and_the_variable(
    machines: Machines,
) -> None:
    one, two, three = machines.addresses
    machines.hosts.ip(1, f"route add unreachable {three}/32")
    machines.hosts.ip(2, f"route add unreachable {two}/32")
    first, *others = [told["error"] for told in machines.join(one, 0, 1, 2)]
    machines.hosts.ip(1, f"route del unreachable {three}/32")
    machines.hosts.ip(2, f"route del unreachable {two}/32")
    assert re.fullmatch(
        rf"torchrun started 3 ranks, which cannot meet at MASTER_ADDR={one}, port \d+: rank 1"
        rf" \(node2, {two} on e0\) cannot reach rank 2 \(node3, {three} on e0\): No route to host;"
        rf" rank 2 \(node3, {three} on e0\) cannot reach rank 1 .*: No route to host\. node1"
        rf" has lo 127\.0\.0\.1 ::1, e0 {one}, .*; node2 has .*; node3 has .* Let TCP"
        r" connections .* through, .* export GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME .*",
        first,
    )
    assert all(told.endswith("rank 0 says why") for told in others)

    def refused(*names: str, ray: bool = False) -> str:
        each = [{network.GLOO: name} for name in names]
        for number, told in enumerate(each):
            told |= {network.NODE_ADDRESS: machines.addresses[number]} if ray else {}
        error: str = machines.join(one, *range(len(names)), each=each)[0]["error"]
        return error

    for host, other in ((0, two), (1, one)):
        machines.hosts.ip(host, f"route add unreachable {other}/32")
    told, lost = [t["error"] for t in machines.join(one, 0, 1, each=[{"PATIENCE_S": "5"}] * 2)]
    for host, other in ((0, two), (1, one)):
        machines.hosts.ip(host, f"route del unreachable {other}/32")
    advice = "Let TCP connections between the machines through, on all ports"
    assert "1/2 clients joined" in told and f"e0 {one}, " in told and advice in told
    assert f"({one}, " in lost and f"e0 {two}, " in lost and advice in lost

    told = refused("lo", "lo")
    assert (
        "rank 0 (node1, 127.0.0.1 on lo by GLOO_SOCKET_IFNAME) cannot reach rank 1 (node2" in told
    )
    assert "Connection refused" in told
    told = refused("e0", "eth0", ray=True)
    assert told.startswith("Ray started 2 ranks, which cannot meet") and "torchrun" not in told
    assert (
        f"rank 1 (node2, {two} on eth0 by GLOO_SOCKET_IFNAME): there is no interface of this"
        in told
    )
    assert "before ray start on a machine" in told
    told = refused("e0", "e6")
    assert "one address is IPv4 and one IPv6; of an interface gloo takes the first" in told


@pytest.mark.slow  # 90 s: two Rays, six Pythons with torch
@pytest.mark.cluster
def test_ranks_that_ray_placed_train_over_ipv6_or_say_what_keeps_them_apart(
    tmp_path: Path,
) -> None:
    config, head = write_config(tmp_path), "[fd00::1]:6379"
    cluster = f"\n[cluster]\naddress = '{head}'\ntrainer_ranks = 2\ngpus_per_rank = 0\n"
    config.write_text(config.read_text() + cluster)
    with pretended_hosts(2, tmp_path) as hosts:
        start = ["ray", "start", "--num-cpus=1", "--object-store-memory=80000000"]
        told = {"RAY_USAGE_STATS_ENABLED": "0"}
        for host in range(2):
            hosts.write_names(host, f"127.0.1.1 node{host + 1}")
            hosts.ip(host, "addr flush dev e0")
            hosts.ip(host, f"addr add fd00::{host + 1}/64 dev e0 nodad")
            where = [f"--address={head}"] if host else ["--head"]
            hosts.run(host, *start, *where, f"--node-ip-address=fd00::{host + 1}", env=told)

        def train(name: str, **env: str) -> tuple[int, str]:
            train = ["katgym", "train", "sft", str(config), "--out", str(tmp_path / name)]
            run = hosts.start(0, *train, env=told | env)
            _, err = run.communicate(timeout=HANG_S)
            return run.returncode, " ".join(err.split())

        code, said = train("one")
        assert code == 0, said
        assert "step 8/8" in said and "hostname" not in said, said
        code, said = train("other", GLOO_SOCKET_IFNAME="lo")
        assert code == 1 and "error: Ray started 2 ranks, which cannot meet at MASTER_ADDR" in said
        assert "torchrun" not in said and "started again" not in said and said.count("lo by") == 4
        assert "rank 0 says why" in said


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(MeetingError) as e:
        network.meet(dist.HashStore(), 0, 3, timedelta(milliseconds=50))
    assert str(e.value).startswith(
        "no sign of rank 1, 2 within 0.05 s: look for an error there."
        f" {socket.gethostname()} has lo 127.0.0.1"
    )


def test_an_unknown_name_is_told_and_a_name_server_that_is_silent_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29555")
    errors = [socket.gaierror(socket.EAI_AGAIN, "Try again")]
    look_up = socket.getaddrinfo

    def find(host: str, *more: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return look_up("127.0.1.1", *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(network.time, "sleep", lambda seconds: None)
    here = socket.gethostname()
    assert network.tell_first_rank() == f"MASTER_ADDR=node1 (127.0.1.1 on {here}), port 29555"
    errors = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")]
    with pytest.raises(MeetingError, match="does not know MASTER_ADDR=node1"):
        network.tell_first_rank()
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(MeetingError, match="MASTER_ADDR and MASTER_PORT are to name"):
        network.tell_first_rank()


def test_a_machine_whose_interfaces_are_not_told_leaves_them_to_gloo() -> None:
    environ: dict[str, str] = {}
    place = Place(rank=0, host="node1", address="10.0.0.1", interfaces={})
    assert choose_interface(place, [place], environ) == place and environ == {}
