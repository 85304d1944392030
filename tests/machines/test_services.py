"""Sandboxes, a gateway and its agents, a server that shares no folder, on three machines."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from gateway_process import KEY
from machines import CONDITIONS, Command, Machines
from rl_play import config_text, metrics
from test_evaluations import check_rewards, start_eval
from test_rl_gateway_vllm import CONFIG
from vllm_servers import save, tiny_model

from katgym.rollout_store import RolloutStore

pytestmark = [pytest.mark.machines]
TOKEN = "a token of sixteen characters or more"
AGENTS = Path(__file__).parents[1] / "trainer/rl/agents/play_digits.py"
OUT_S = 30
"""Seconds that a cable is out: requests run into it. How many do decides nothing."""


def url_of(command: Command, start: str) -> str:
    """Return the address that a service prints once it serves."""
    pattern = re.compile(rf"{start}\S*(http://[^\s,#]+)")
    found = command.until(lambda: pattern.search(command.said), "a service")
    return str(found[1])


# ---- sandboxes


def start_daemons(machines: Machines) -> None:
    """Serve sandboxes on two machines, and write the file that names them."""
    urls = []
    for host in (1, 2):
        daemon = machines.katgym(
            host, "sandboxd", "--host", "0.0.0.0", "--port", "8765", "--max-sandboxes", "8",
            KATGYM_SANDBOXD_TOKEN=TOKEN, XDG_CACHE_HOME="/tmp/cache",
        )  # fmt: skip
        url_of(daemon, "sandboxes of backend 'local' on ")
        urls.append(f"http://{machines.addresses[host]}:8765")
    (machines.folder / "hosts.txt").write_text("\n".join(urls))


def start_boxed(machines: Machines) -> Command:
    machines.write_plugin()
    (machines.folder / "hold").touch()
    start_daemons(machines)
    where = f"sandbox=sandboxd:@{machines.folder / 'hosts.txt'}"
    return start_eval(machines, f"paced/Boxed-v0?{where}", KATGYM_SANDBOXD_TOKEN=TOKEN)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_sandboxes_of_other_machines_are_played_in(machines: Machines, condition: str) -> None:
    machines.set_condition(condition)
    run = start_boxed(machines)
    (machines.folder / "hold").unlink()
    run.end()
    check_rewards(machines)
    assert set(machines.begun().values()) == {1}


def test_sandboxes_whose_machine_is_cut_off_and_comes_back(machines: Machines) -> None:
    run = start_boxed(machines)
    run.until(lambda: len(machines.begun()) >= 40, "sandboxes on both machines")
    machines.hosts.cut(2)
    lost = f"left out: sandboxd at http://{machines.addresses[2]}:8765"
    run.until(lambda: lost in run.said, "a machine to be left out")
    machines.hosts.mend(2)
    run.until(lambda: "used again" in run.said, "it to be used again")
    (machines.folder / "hold").unlink()
    run.end()
    check_rewards(machines)


# ---- a gateway with agents elsewhere


class Recorded:
    """A server on the second machine, gateway and trainer on the first, agents on the third."""

    def __init__(self, machines: Machines, python: str) -> None:
        folder = machines.folder
        self.machines, self.out, self.store = machines, folder / "run", folder / "store"
        first, second, _ = machines.addresses
        model = save(tiny_model(), folder / "tiny")
        server = machines.katgym(
            1, "vllm", "serve", model, "--host", second, "--lora", "--rl", "--name", "tiny",
            "--dtype", "float32", "--max-model-len", "1024", "--python", python,
            "--set", "max_lora_rank=8", "--", "--enforce-eager",
        )  # fmt: skip
        url = url_of(server, "vllm:")
        self.gateway = machines.katgym(
            0, "gateway", "--upstream", url, "--store", self.store, "--host", first,
            "--model", "tiny", "--set", "sampling.temperature=1.0", "--max-staleness", "1",
            "--sessions-per-version", "9", KATGYM_GATEWAY_KEY=KEY,
        )  # fmt: skip
        gateway = url_of(self.gateway, "gateway on ")
        text = CONFIG.format(
            model=model, server=url, gateway=gateway, store=self.store,
            num_groups=2, group_size=4, max_staleness=1,
        )  # fmt: skip
        (folder / "rl.toml").write_text(text)
        self.run = machines.katgym(
            0, "train", "rl", folder / "rl.toml", "--steps", "6", "--out", self.out,
            KATGYM_GATEWAY_KEY=KEY,
        )  # fmt: skip
        self.agents = machines.start(
            2, sys.executable, str(AGENTS), "4", "2",
            KATGYM_GATEWAY_URL=gateway, KATGYM_GATEWAY_KEY=KEY,
        )  # fmt: skip

    def check(self) -> None:
        """Each step trained on whole groups of sessions, none twice."""
        lines = metrics(self.out)
        assert [line["step"] for line in lines] == list(range(1, 7))
        assert all(line["rollout/num_rollouts"] == 8 for line in lines)
        assert all(line["sync/difference"] < 1e-4 for line in lines)
        with RolloutStore.open(self.out / "rollouts", create=False) as store:
            trained = list(store.sessions())
        sizes = Counter(record.metadata["step"] for record in trained)
        assert sizes == dict.fromkeys(range(1, 7), 8)
        assert len({record.session_id for record in trained}) == len(trained)
        with RolloutStore.open(self.store, create=False) as store:
            assert all(len(store.turns(record.session_id)) == 2 for record in trained)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_agents_on_another_machine_are_recorded_and_learned_from(
    machines: Machines, condition: str, vllm_python: str
) -> None:
    machines.set_condition(condition)
    made = Recorded(machines, vllm_python)
    made.run.end()
    made.check()


@pytest.mark.parametrize("host", [1, 2])
def test_the_server_or_the_agents_of_a_gateway_are_cut_off_and_come_back(
    machines: Machines, host: int, vllm_python: str
) -> None:
    made = Recorded(machines, vllm_python)
    made.run.until(lambda: len(metrics(made.out)) >= 2, "two steps")
    machines.hosts.cut(host)
    time.sleep(OUT_S)
    machines.hosts.mend(host)
    made.run.end()
    made.check()


# ---- a server that sees nothing of the run's folder


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_server_without_the_runs_folder_gets_weights(
    machines: Machines, condition: str, vllm_python: str
) -> None:
    machines.set_condition(condition)
    folder, address, key = machines.folder, machines.addresses[1], "secret"
    machines.write_plugin()
    save(tiny_model(), folder / "tiny")
    for host, own in ((0, "here"), (1, "there")):  # which the other one does not have
        machines.hosts.run(host, "cp", "-r", str(folder / "tiny"), f"/tmp/{own}")
    server = machines.katgym(
        1, "vllm", "serve", "/tmp/there", "--host", address, "--rl", "--name", "tiny",
        "--dtype", "float32", "--max-model-len", "1024", "--python", vllm_python,
        "--", "--enforce-eager",
    )  # fmt: skip
    receiver = machines.katgym(
        1, "vllm", "receive", "/tmp/weights", "0.0.0.0:8010", KATGYM_RECEIVER_KEY=key
    )
    url_of(server, "vllm:"), url_of(receiver, "")
    servers = f'uri = "vllm"\n[[policy.servers]]\nurl = "http://{address}:8000#tiny"\n'
    servers += f'receiver = "http://{address}:8010"\n'
    text = config_text(Path("/tmp/here"), steps=4).replace(
        "rltest/Low-v0", f"paced/Digits-v0?folder={folder}"
    )
    text = text.replace("max_context_tokens = 400\n", f"max_context_tokens = 400\n{servers}")
    (folder / "rl.toml").write_text(text)
    run = machines.katgym(
        0, "train", "rl", folder / "rl.toml", "--out", "/tmp/run", KATGYM_RECEIVER_KEY=key
    )
    run.end()
    machines.hosts.run(0, "cp", "-r", "/tmp/run", str(folder / "run"))
    lines = metrics(folder / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["sync/difference"] < 1e-4 for line in lines)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert "v4" in machines.hosts.run(1, "ls", "/tmp/weights")
