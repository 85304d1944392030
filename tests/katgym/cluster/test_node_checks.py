"""Verdicts about nodes from facts, what a probe sees, and one real cluster with faulty nodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pretended_hosts import pretended_hosts
from waiting import HANG_S

from katgym.cli.environments.doctor_command import join_nodes
from katgym.cli.main import main
from katgym.cluster import node_survey
from katgym.cluster.node_checks import NodeFinding, judge
from katgym.cluster.node_survey import Node, NodeFacts, NodeProbe, Survey, gather_facts

HERE = NodeFacts(
    python="3.11.7",
    versions={"katgym": "0.1.0", "torch": "2.11.0", "rich": "14.0", "black": "26.1"},
    needed=frozenset({"katgym", "torch", "rich", "peft"}),
)


def node(number: int, *, address: str = "", **facts: Any) -> Node:
    """A node without faults, but for the facts that are told."""
    address = address or f"192.0.2.{number}"
    told: dict[str, Any] = {
        "host": f"node{number}",
        "boot": f"boot{number}",
        "resolved": (address,),
        "interfaces": {"lo": ("127.0.0.1", "::1"), "e0": (address, "fe80::1")},
        "ports": {address: 40000 + number},
    }
    found = replace(HERE, **{**told, **facts})
    return Node(
        node=f"{number}" * 56, host=found.host, address=address, num_cpus=8, num_gpus=1,
        facts=found, clock=(0.001, 0.0004),
    )  # fmt: skip


def judged(name: str, *nodes: Node, here: NodeFacts = HERE) -> list[tuple[str, str]]:
    """Detail and fix of one check, for each node."""
    found = judge(Survey(here=here, folder="/shared", nodes=nodes))
    assert all(f.is_working == (not f.fix) for f in found)
    return [(f.detail, f.fix) for f in found if f.name == name]


def test_nodes_without_faults_work() -> None:
    found = judge(Survey(here=HERE, folder="/shared", nodes=[node(1), node(2), node(3)]))
    assert len(found) == 7 * 3 and all(f.is_working for f in found)
    assert {f.name: f.detail for f in found if f.host == "node2"} == {
        "node": "8 CPU, 1 GPU, Python 3.11.7, katgym 0.1.0",
        "versions": "Python 3.11.7, katgym 0.1.0",
        "shared folder": "reads and writes '/shared'",
        "names": "the hostname is the address",
        "ports": "reached from every other node",
        "interfaces": "e0 has the address",
        "clocks": "+0.00 s (± 0.01 s)",
    }
    assert found[1].node == "22222222" and found[1].address == "192.0.2.2"
    assert judged("ports", node(1)) == [("there is no other node", "")]


def test_a_node_that_says_nothing_is_one_finding_with_its_reason() -> None:
    for error, fix in (
        ("it does not answer within 60 s", "see whether it is up"),
        ("ModuleNotFoundError: No module named 'katgym'", "'katgym[cluster]==0.1.0' there"),
        ("The actor died unexpectedly", "/tmp/ray/session_latest/logs"),
    ):
        silent = Node(node="3" * 56, host="node1", address="192.0.2.3", error=error)
        found = judge(Survey(here=HERE, folder="/shared", nodes=[node(1), node(2), silent]))
        assert [f.name for f in found if f.node == "33333333"] == ["node"]
        (told,) = [f for f in found if not f.is_working]
        assert told.detail == error and fix in told.fix


def test_versions_count_where_katgym_needs_a_package() -> None:
    def told(**changes: Any) -> tuple[str, str]:
        versions = {**HERE.versions, **changes.pop("versions", {})}
        kept = {name: version for name, version in versions.items() if version}
        return judged("versions", node(1, versions=kept, **changes))[0]

    assert told(versions={"black": None, "flake8": "7.0"})[1] == ""  # nobody needs them
    assert told(versions={"black": "25.0"}) == (
        "black 25.0 (here 26.1)",
        "there: pip install black==26.1",
    )
    assert told(versions={"rich": None, "peft": "1.0"}) == (
        "peft 1.0 (here missing), rich missing (here 14.0)",
        "there: pip install rich==14.0; pip uninstall peft",
    )
    plugin = {"katgym-plugin-odd": "2.0"}
    found = told(versions={**plugin, "torch": "2.9"}, needed=HERE.needed | plugin.keys())
    assert found[0] == "katgym-plugin-odd 2.0 (here missing), torch 2.9 (here 2.11.0)"
    assert told(python="3.12.1") == ("Python 3.12.1 (here 3.11.7)", "there: install Python 3.11.7")

    names = [f"p{number}" for number in range(7)]
    here = replace(HERE, versions={**HERE.versions, **dict.fromkeys([*names, "numpy"], "2")})
    there = {**HERE.versions, **dict.fromkeys([*names, "numpy"], "1")}
    ((detail, fix),) = judged("versions", node(1, versions=there), here=here)
    assert detail.startswith("numpy 1 (here 2), p0 1 (here 2), ")
    assert detail.endswith("p3 1 (here 2) and 3 more") and "pip freeze" in fix


def test_a_folder_that_is_not_shared_is_told() -> None:
    told = "there is no '/shared'"
    found = judged("shared folder", node(1), replace(node(2), folder_error=told))
    assert found[0][1] == "" and found[1][0] == told and "all nodes share" in found[1][1]


def test_a_hostname_may_mean_anything_but_another_machine() -> None:
    for facts, words in (
        ({"resolved": ()}, "is unknown there; katgym uses addresses"),
        ({"resolved": ("127.0.1.1",)}, "is 127.0.1.1 there; katgym uses addresses"),
        ({"resolved": ("192.0.2.1", "fd00::1")}, "is the address"),
    ):
        assert judged("names", node(1, **facts)) == [(f"the hostname {words}", "")]
    ((detail, fix),) = judged("names", node(1, is_lookup_slow=True))
    assert "more than 5 s" in detail and "'192.0.2.1 node1' to /etc/hosts" in fix

    twins = judged("names", node(1), node(2, host="node1"), node(3))
    assert twins[0] == twins[1] and twins[2][1] == ""
    assert twins[0][0].startswith("'node1' is the hostname of 192.0.2.1, 192.0.2.2: leases")
    assert "hostnamectl set-hostname" in twins[0][1]
    # Of one kernel they see each other's locks; a kernel without a name is nobody's.
    same = {"host": "vm", "boot": "boot"}
    assert [fix for _, fix in judged("names", node(1, **same), node(2, **same))] == ["", ""]
    same["boot"] = ""
    assert all(fix for _, fix in judged("names", node(1, **same), node(2, **same)))


def test_ports_name_who_does_not_reach_whom() -> None:
    def ports(*unreached: dict[int, str], num: int = 4) -> list[tuple[str, str]]:
        more = [*unreached, *[{}] * (num - len(unreached))]
        errors = [{f"{other}" * 56: why for other, why in told.items()} for told in more]
        return judged(
            "ports",
            *(replace(node(n + 1), unreached=told) for n, told in enumerate(errors)),
        )

    found = ports({3: "timed out"}, {3: "timed out"}, {}, {3: "no route to host"})
    assert [fix == "" for _, fix in found] == [True, True, False, True]
    assert found[2][0] == (
        "not reached from 192.0.2.1, 192.0.2.2: timed out;"
        " not reached from 192.0.2.4: no route to host"
    )
    assert "let TCP through" in found[2][1]
    # One that reaches nobody, and is reached by nobody, is the only one to blame.
    lost = {3: "timed out"}
    found = ports(lost, lost, {1: "timed out", 2: "timed out", 4: "timed out"}, lost)
    assert [fix == "" for _, fix in found] == [True, True, False, True]
    assert found[0][0] == "reached from every node that reaches others"
    assert found[2][0] == (
        "not reached from 192.0.2.1, 192.0.2.2, 192.0.2.4: timed out;"
        " reaches no other node: timed out"
    )
    # Of two nobody knows which one.
    found = ports({2: "timed out"}, {1: "timed out"}, num=2)
    assert [detail for detail, _ in found] == [
        "not reached from 192.0.2.2: timed out",
        "not reached from 192.0.2.1: timed out",
    ]
    deaf = node(1, ports={}, listen_error="cannot assign requested address")
    assert "listen at its address: cannot assign" in judged("ports", deaf, node(2))[0][0]


def test_the_interface_with_a_nodes_address_is_the_one_that_gloo_takes() -> None:
    def told(*addresses: str, settings: dict[str, str] | None = None, **more: Any) -> Any:
        interfaces = {"lo": ("127.0.0.1",), "e0": addresses, **more}
        changed = node(2, interfaces=interfaces, variables=settings or {})
        return judged("interfaces", node(1), changed)[1]

    wlan = {"wlan0": ("10.0.0.2", "fe80::2")}
    assert told("192.0.2.2", **wlan) == ("e0 has the address; others: wlan0 10.0.0.2 fe80::2", "")
    detail, fix = told("192.0.2.9", **wlan)
    assert detail.startswith("no interface has 192.0.2.2; others: e0 192.0.2.9, wlan0 10.0.0.2")
    assert "ray start --node-ip-address=ADDRESS" in fix
    detail = "e0 has the address; gloo takes 192.0.2.9"
    assert told("192.0.2.9", "192.0.2.2") == (detail, "")
    found = told("192.0.2.2", settings={"GLOO_SOCKET_IFNAME": "wlan0"}, **wlan)
    assert found[0].startswith("e0 has the address; gloo takes 10.0.0.2; others: wlan0")

    for name, value, is_working in (
        ("GLOO_SOCKET_IFNAME", "e0,lo", True),
        ("GLOO_SOCKET_IFNAME", "e", False),
        ("GLOO_SOCKET_IFNAME", "e0,ib0", False),
        ("NCCL_SOCKET_IFNAME", "ib,e", True),
        ("NCCL_SOCKET_IFNAME", "ib", False),
        ("NCCL_SOCKET_IFNAME", "=e0", True),
        ("NCCL_SOCKET_IFNAME", "=e", False),
        ("NCCL_SOCKET_IFNAME", "^lo", True),
        ("NCCL_SOCKET_IFNAME", "^lo,e", False),
        ("NCCL_SOCKET_IFNAME", "^=lo,e", True),
    ):
        detail, fix = told("192.0.2.2", settings={name: value})
        assert f"{name}={value}" in detail, (name, value)
        assert (not fix) == is_working, (name, value, detail)
        assert is_working or ("lo, e0" in detail and f"unset {name}" in fix)
    # The command's variables are its ranks', whatever a node has.
    here = replace(HERE, variables={"GLOO_SOCKET_IFNAME": "ib0"})
    changed = node(1, variables={"GLOO_SOCKET_IFNAME": "e0"})
    assert "IFNAME=ib0, but" in judged("interfaces", changed, here=here)[0][0]


def test_nodes_have_addresses_of_one_family_that_others_reach() -> None:
    six = node(2, address="fd00::2")
    assert [fix for _, fix in judged("interfaces", six, node(3, address="fd00::3"))] == ["", ""]
    found = judged("interfaces", node(1), six)
    assert found[0][1] == "" and "not of the family of 192.0.2.1" in found[1][0]
    assert "--node-ip-address=ADDRESS of one family" in found[1][1]
    both = node(3, address="fd00::3", interfaces={"e0": ("192.0.2.3", "fd00::3")})
    assert judged("interfaces", node(1), both)[1] == (
        "e0 has the address; gloo takes 192.0.2.3",
        "",
    )

    inner = node(1, address="127.0.0.1", interfaces={"lo": ("127.0.0.1",), "e0": ("10.0.0.1",)})
    assert judged("interfaces", inner, replace(inner, node="2" * 56))[0][1] == ""
    detail, fix = judged("interfaces", inner, node(2))[0]
    assert detail == "127.0.0.1 is reached from its own machine alone; others: e0 10.0.0.1"
    assert "ray start --node-ip-address=ADDRESS" in fix


def test_clocks_differ_when_they_do_so_beyond_what_is_known() -> None:
    for ahead_s, error_s, detail, is_working in (
        (-0.001, 0.0, "+0.00 s (± 0.01 s)", True),
        (-4.5, 0.1, "-4.50 s (± 0.10 s)", True),
        (7.0, 2.5, "+7.00 s (± 2.50 s)", True),
        (7.0, 1.5, "+7.00 s (± 1.50 s) beside here; leases", False),
        (-60.0, 0.2, "-60.00 s (± 0.20 s) beside here; leases", False),
    ):
        told, fix = judged("clocks", replace(node(1), clock=(ahead_s, error_s)))[0]
        assert told.startswith(detail) and (not fix) == is_working
        assert is_working or "chrony" in fix


def test_nodes_with_the_same_fault_share_a_line() -> None:
    def finding(number: int, detail: str, fix: str = "") -> NodeFinding:
        return NodeFinding(
            name="versions", node=f"{number:08d}", host=f"node{number}", is_working=not fix,
            address=f"192.0.2.{number}", detail=detail, fix=fix,
        )  # fmt: skip

    def lines(*findings: NodeFinding) -> list[tuple[bool, str, str, str]]:
        return [(f.is_working, f.name, f.detail, f.fix) for f in join_nodes(findings)]

    two, three = (f"node{n} (192.0.2.{n})" for n in (2, 3))
    assert lines(finding(1, "fine")) == [(True, "versions", "fine", "")]
    assert lines(*(finding(n, "fine") for n in range(63))) == [
        (True, "versions", "alike on 63 nodes: fine", "")
    ]
    assert lines(finding(1, "a"), finding(2, "b"), finding(3, "b")) == [
        (True, "versions", f"node1 (192.0.2.1): a; {two}, {three}: b", "")
    ]
    assert lines(finding(1, "fine"), finding(2, "bad", "x"), finding(3, "worse", "y")) == [
        (False, f"versions: {two}", "bad", "x"),
        (False, f"versions: {three}", "worse", "y"),
        (True, "versions: node1 (192.0.2.1)", "fine", ""),
    ]
    found = lines(*(finding(n, "bad", "x") for n in range(60)), finding(60, "a"), finding(61, "a"))
    assert found[0][1] == "versions: 60 nodes"
    assert found[0][2].endswith("node7 (192.0.2.7) and 52 more: bad")
    assert found[1] == (True, "versions: the others", "alike on 2 nodes: a", "")
    (found_,) = lines(*(finding(n, str(n)) for n in range(63)))
    assert found_[2].endswith("node7 (192.0.2.7): 7 and 55 more")
    same = [replace(finding(n, "a"), host="vm", address="127.0.0.1") for n in (1, 2)]
    assert lines(*same, finding(3, "b"))[0][2].startswith("vm (127.0.0.1, 00000001), vm")


def test_facts_of_this_process(plugin_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_tree.add_distribution("Katgym_Plugin.Odd", {"odd": "kp_odd"})
    (plugin_tree.folder / "nameless-1.0.dist-info").mkdir()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    facts = gather_facts()
    assert facts.versions["katgym-plugin-odd"] == "1.2.3"
    assert {"katgym", "katgym-plugin-odd", "rich", "torch", "ray"} <= facts.needed
    assert not {"pytest", "mypy"} & facts.needed  # of katgym's developers
    assert facts.variables == {"GLOO_SOCKET_IFNAME": "lo"}
    assert "127.0.0.1" in facts.interfaces["lo"]


def test_a_probe_tells_what_it_cannot_reach_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_survey, "_SHARE_S", 0.0)
    monkeypatch.setattr(node_survey, "_AGAIN_S", 0.0)
    here = gather_facts()
    monkeypatch.setattr(node_survey, "gather_facts", lambda: here)

    async def look(address: str) -> None:
        probe, other = NodeProbe(), NodeProbe()
        ports = (await probe.gather(address, "")).ports
        assert address in ports and (await other.gather(address, "")).ports != ports
        places = [("open", *where) for where in ports.items()] + [("closed", address, 1)]
        assert await other.connect(places) == {"closed": f"connection refused at {address}"}
        await probe.close()
        await other.close()
        unknown = await NodeProbe().gather("192.0.2.250", "")
        assert not unknown.ports and unknown.listen_error == "cannot assign requested address"

    for address in here.interfaces["lo"]:  # ::1, too, where there is IPv6
        asyncio.run(look(address))

    async def share(folder: Path, content: str, *, answer: Path | None = None) -> str:
        file = folder / ".katgym-doctor-0"
        if folder.exists():
            file.write_text(content)
        probe = NodeProbe()
        told = await probe.share(file, "token", answer or folder / "answer")
        assert (folder / "answer").exists() == (told == "")
        await probe.close()
        assert not (folder / "answer").exists()
        return told

    assert asyncio.run(share(tmp_path, "token")) == ""
    assert "there is no" in asyncio.run(share(tmp_path / "none", "token"))
    assert "is not seen there: it holds something else" in asyncio.run(share(tmp_path, "other"))
    told = asyncio.run(share(tmp_path, "token", answer=tmp_path / "none" / "answer"))
    assert "cannot be written to from there: no such file" in told


def test_a_cluster_that_is_not_there_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    for address, words in (
        ("here", "address is HOST:PORT, 'auto' or 'local', got 'here'"),
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1'"),
        ("ray://head:1", "of a Ray client"),
    ):
        assert main(["doctor", "--cluster", address]) == 2
        assert words in capsys.readouterr().err
    without = """if True:
        import sys; sys.modules["ray"] = None
        from katgym.cli.main import main
        sys.exit(10 * main(["doctor", "--json"]) + main(["doctor", "--cluster", "auto"]))"""
    command = [sys.executable, "-c", without]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "core" in {f["name"] for f in json.loads(done.stdout)}
    assert "pip install 'katgym[cluster]'" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_a_real_cluster_is_checked_from_all_its_nodes(
    start_cluster: Callable[[int], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    cluster = start_cluster(1)

    def check() -> tuple[int, dict[str, list[dict[str, Any]]]]:
        code = main(["doctor", "--cluster", cluster.address, "--json"])
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(capfd.readouterr().out):
            found.setdefault(finding["name"], []).append(finding)
        assert not any(folder.iterdir())
        return code, found

    # 1. Two nodes without faults: what they do not owe to this machine's network.
    code, found = check()
    faults = [f for told in found.values() for f in told if not f["is_working"]]
    assert code == bool(faults) and {f["name"] for f in faults} <= {"names", "interfaces"}
    assert {name: len(told) for name, told in found.items()} == dict.fromkeys(found, 2)

    # 2. A node with another version, and one whose katgym is none.
    info = tmp_path / "odd" / "rich-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 0.0.1\n")
    (tmp_path / "hollow" / "katgym").mkdir(parents=True)
    (tmp_path / "hollow" / "katgym" / "__init__.py").touch()
    for kind in ("odd", "hollow"):
        env = {"PYTHONPATH": str(tmp_path / kind)}
        cluster.add_node(num_cpus=1, object_store_memory=80_000_000, env_vars=env)
    code, found = check()
    assert code == 1 and len(found["node"]) == 4 and len(found["ports"]) == 3
    (odd,) = [f for f in found["versions"] if not f["is_working"]]
    assert "rich 0.0.1 (here " in odd["detail"] and "pip install rich==" in odd["fix"]
    (hollow,) = [f for f in found["node"] if not f["is_working"]]
    assert hollow["detail"] == "ModuleNotFoundError: No module named 'katgym.cluster'"
    assert {f["is_working"] for f in found["shared folder"] + found["ports"]} == {True}
    assert hollow["node"] not in {f["node"] for f in found["ports"]}


@pytest.mark.slow
@pytest.mark.cluster
def test_faults_of_machines_and_the_network_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pretended_hosts(3, tmp_path) as hosts:
        first, second, third = hosts.addresses
        start = ("ray", "start", "--num-cpus=1", "--object-store-memory=80000000")
        hosts.run(0, *start, "--head", "--include-dashboard=false", f"--node-ip-address={first}")
        for host in (1, 2):
            told = [f"--address={first}:6379", f"--node-ip-address={hosts.addresses[host]}"]
            hosts.run(host, *start, *told)

        def check(folder: str) -> list[tuple[str, str, str]]:
            """Name, address and detail of what does not work, seen from the first machine."""
            command = ("katgym", "doctor", "--cluster", "auto", "--json")
            process = hosts.start(0, "env", f"--chdir={folder}", *command)
            out, err = process.communicate(timeout=HANG_S)
            told = [f for f in json.loads(out or err) if not f["is_working"]]
            assert process.returncode == bool(told)
            return [(f["name"], f["address"], f["detail"]) for f in told]

        assert check(str(tmp_path)) == []
        hosts.run(2, "hostname", "node1")  # of one kernel they may share it
        hosts.ip(2, f"addr del {third}/24 dev e0")  # the first one stands first, and is its source
        hosts.ip(2, "addr add 198.51.100.99/24 dev e0")
        hosts.ip(2, f"addr add {third}/24 dev e0")
        hosts.ip(1, "route add unreachable 198.51.100.99")  # which gloo would take
        unseen = "what is written to '/tmp' here is not seen there: no such file or directory"
        assert check("/tmp") == [
            ("shared folder", second, unseen),
            ("shared folder", third, unseen),
            ("ports", second, f"not reached from {third}: timed out at {second}"),
            ("ports", third, f"not reached from {second}: no route to host at 198.51.100.99"),
        ]
        assert [*tmp_path.iterdir()] == []
