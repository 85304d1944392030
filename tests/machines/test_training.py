"""`katgym train` on three machines: ranks, and vLLM servers that Ray has placed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from held_run import hold, let_go
from machines import CONDITIONS, LOST_HEAD, Command, Machines, three_machines
from rl_play import config_text, metrics
from started_ranks import assert_equal
from test_rl_cluster import check_kept
from test_train_ranks import write_config
from vllm_servers import save, tiny_model

pytestmark = [pytest.mark.machines]
RANKS = "\n[cluster]\ntrainer_ranks = 2\ngpus_per_rank = 0\n"
SERVERS = """max_context_tokens = 400
uri = "vllm"
server_python = "{python}"
server_args = ["--enforce-eager"]
[[policy.servers]]
gpus = 0
count = 2
"""
WORKERS = "\n[cluster]\nrollout_workers = 2\n"


def wait_for_steps(run: Command, out: Path, num: int) -> None:
    run.until(lambda: len(metrics(out)) >= num, f"{num} steps")


def told(file: Path, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())[key] if file.exists() else []
    return found


class Gang:
    """Ranks that train on two of three machines, and stand still behind steps."""

    def __init__(self, machines: Machines, steps: Sequence[int], *, cpus_of_head: int = 1) -> None:
        folder = machines.folder
        self.machines, self.out = machines, folder / "run"
        self.config = write_config(folder)
        text = self.config.read_text().replace("num_steps = 8", "num_steps = 12")
        self.config.write_text(text + RANKS + hold(folder, *steps))
        for host in range(3):
            machines.start_ray(host, 1 if host else cpus_of_head)

    def start(self, host: int = 0) -> Command:
        return self.machines.katgym(host, "train", "sft", self.config, "--out", self.out)

    def hosts(self, run: Command, restarts: int = 0) -> list[int]:
        """Return the machine of each rank, once they were started again so often."""

        def are_up() -> list[dict[str, Any]]:
            ranks = told(self.out / "ranks.json", "ranks")
            is_so = all(rank["num_restarts"] == restarts and rank["is_up"] for rank in ranks)
            return ranks if is_so else []

        names = [rank["name"] for rank in run.until(are_up, "ranks")]
        return [self.machines.find_host(re.findall(r"on node (\w+)", name)[0]) for name in names]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    with three_machines(tmp_path_factory.mktemp("undisturbed")) as machines:
        gang = Gang(machines, ())
        gang.start().end()
    return gang.out


@pytest.mark.parametrize("condition", CONDITIONS[1:])
def test_ranks_on_two_machines_train_the_same(
    machines: Machines, condition: str, undisturbed: Path
) -> None:
    machines.set_condition(condition)
    gang = Gang(machines, ())
    run = gang.start()
    assert len(set(gang.hosts(run))) == 2
    run.end()
    assert_equal(gang.out, undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_machine_is_cut_off_and_comes_back_trains_the_same(
    machines: Machines, rank: int, undisturbed: Path
) -> None:
    gang = Gang(machines, [5], cpus_of_head=0)
    run = gang.start()
    wait_for_steps(run, gang.out, 5)
    host = gang.hosts(run)[rank]
    machines.hosts.cut(host)
    let_go(machines.folder, 5)
    lost = "is lost: all ranks are started again, from step 4"
    run.until(lambda: lost in run.said, "a rank to be lost")
    machines.hosts.mend(host)
    machines.end_ray(host)
    machines.start_ray(host)
    run.end()
    assert_equal(gang.out, undisturbed)


def test_ranks_train_to_their_end_without_a_head(machines: Machines, undisturbed: Path) -> None:
    gang = Gang(machines, [5], cpus_of_head=0)
    run = gang.start(host=1)
    wait_for_steps(run, gang.out, 5)
    machines.hosts.cut(0)
    let_go(machines.folder, 5)
    assert "the head of the cluster does not answer" in run.end()
    assert_equal(gang.out, undisturbed)


class Reinforcement:
    """A run with two vLLM servers and two workers on two machines; the trainer is on the first."""

    def __init__(self, machines: Machines, python: str) -> None:
        folder = machines.folder
        self.machines, self.out, self.hold = machines, folder / "run", folder / "hold"
        machines.write_plugin()
        model = save(tiny_model(), folder / "tiny")
        text = config_text(model, steps=6, rollouts="max_staleness = 1")
        text = text.replace("rltest/Low-v0", f"paced/Digits-v0?folder={folder}")
        text = text.replace("1e-2", "1e-4")
        text = text.replace("max_context_tokens = 400\n", SERVERS.format(python=python))
        self.config = folder / "rl.toml"
        self.config.write_text(text + WORKERS)
        for host in range(3):
            machines.start_ray(host, 2 if host else 0)

    def start(self, host: int = 0) -> Command:
        return self.machines.katgym(host, "train", "rl", self.config, "--out", self.out)

    def check(self) -> None:
        """Each step trained on whole groups, none twice, by the weights it says."""
        lines = metrics(self.out)
        assert [line["step"] for line in lines] == list(range(1, 7))
        assert all(line["rollout/num_invalid"] == 0 for line in lines)
        assert all(line["sync/difference"] < 1e-4 for line in lines)
        assert max(line["rollout/max_staleness"] for line in lines) <= 1
        check_kept(self.out, steps=6)

    def num_up(self) -> tuple[int, int]:
        """Return how many servers and workers are up."""
        file = self.out / "cluster.json"
        servers, workers = (told(file, key) for key in ("servers", "workers"))
        return sum(s["is_open"] for s in servers), sum(w["is_up"] for w in workers)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_servers_and_workers_on_other_machines_serve_a_run(
    machines: Machines, condition: str, vllm_python: str
) -> None:
    machines.set_condition(condition)
    made = Reinforcement(machines, vllm_python)
    made.start().end()
    made.check()
    places = {server["place"].split()[0] for server in told(made.out / "cluster.json", "servers")}
    assert places <= set(machines.addresses[1:])


def test_a_server_and_a_worker_whose_machine_is_cut_off_and_comes_back(
    machines: Machines, vllm_python: str
) -> None:
    made = Reinforcement(machines, vllm_python)
    run = made.start()
    wait_for_steps(run, made.out, 2)
    made.hold.touch()  # what samples goes on, and nothing else begins
    servers = told(made.out / "cluster.json", "servers")
    host = machines.addresses.index(servers[0]["place"].split()[0])
    machines.hosts.cut(host)
    run.until(lambda: made.num_up() != (2, 2), "somebody to be lost")
    machines.hosts.mend(host)
    machines.end_ray(host)
    machines.start_ray(host, 2)
    run.until(lambda: made.num_up() == (2, 2), "them to come back")
    made.hold.unlink()
    run.end()
    made.check()


def test_a_run_whose_head_is_cut_off_goes_on_with_another_cluster(
    machines: Machines, vllm_python: str
) -> None:
    made = Reinforcement(machines, vllm_python)
    run = made.start(host=1)
    wait_for_steps(run, made.out, 2)
    made.hold.touch()
    machines.hosts.cut(0)
    assert LOST_HEAD in run.end(code=1)
    made.hold.unlink()
    for host in (1, 2):
        machines.end_ray(host)
        machines.start_ray(host, 2, head=1)
    made.start(host=1).end()
    made.check()
