"""A run trains the model behind a gateway through which agents play; and what can be wrong there.

The model server is `hf_server.py`. Not here: a real vLLM (`test_rl_gateway_vllm.py`), single groups
(`test_store_stream.py`), what is wrong in a file (`test_rl_config.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gateway_process import ENVIRONMENT, KEY, gateway_of, started
from held_run import hold, let_go
from hf_server import HfServer
from rl_play import metrics
from waiting import wait_until

from katgym.cli.main import main
from katgym.gateway import GatewayClient
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.store_folders import store_folders
from katgym_trainer.rollouts.store_cursors import StoreCursors, find_stores

AGENTS = Path(__file__).parent / "agents" / "play_digits.py"
CONFIG = """
[model]
path = "{model}"
[policy]
uri = "vllm:{server}#tiny"
gateway = "{gateway}"
max_context_tokens = 400
max_tokens = 8
[rollouts]
store = "{store}"
num_groups = 2
group_size = 3
max_staleness = 1
[train]
num_steps = {steps}
learning_rate = 1e-3
[checkpoint]
every_steps = 2
"""
LIMITS = ("--max-staleness", "1", "--sessions-per-version", "7")


@dataclass
class Place:
    """A model server, a gateway in front of it, and where a run may go."""

    folder: Path
    model: Path
    server: HfServer
    gateway: str

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def command(self, *, steps: int = 3, **told: str) -> list[str]:
        """Write a configuration, and return the command that trains by it."""
        values = {"gateway": self.gateway, "server": self.server.url, "store": str(self.store)}
        text = CONFIG.format(model=self.model, steps=steps, **{**values, **told})
        (self.folder / "rl.toml").write_text(text)
        return ["train", "rl", str(self.folder / "rl.toml"), "--out", str(self.run)]

    def agents(self) -> Any:
        """Return a context in which agents play."""
        return started([sys.executable, str(AGENTS), "3", "2"], KATGYM_GATEWAY_URL=self.gateway)

    def told(self, request: str, **options: Any) -> dict[str, Any]:
        """Ask the gateway as its owner."""

        async def ask() -> dict[str, Any]:
            async with GatewayClient(self.gateway, KEY) as client:
                answer: dict[str, Any] = await getattr(client, request)(**options)
                return answer

        return asyncio.run(ask())


@pytest.fixture
def place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("KATGYM_GATEWAY_KEY", KEY)
    with HfServer(model) as server, gateway_of(server.url, tmp_path / "store", *LIMITS) as url:
        yield Place(tmp_path, model, server, url)


def oldest_versions(place: Place) -> dict[int, int]:
    """Return the oldest version that each step was trained on, from the gateway's store."""
    found: dict[int, int] = {}
    with (
        RolloutStore.open(place.store) as theirs,
        RolloutStore.open(place.run / "rollouts") as ours,
    ):
        for record in ours.sessions():
            nodes = theirs.turns(record.session_id)
            oldest = min(span.version for node in nodes for span in node.tokens.version_spans)
            step = record.metadata["step"]
            found[step] = min(found.get(step, oldest), oldest)
    return found


@pytest.mark.slow
def test_agents_play_with_each_steps_weights_and_versions_are_counted(place: Place) -> None:
    pytest.importorskip("openai", reason="needs the package 'openai'")
    with place.agents():
        assert main(place.command(steps=3)) == 0
        assert place.told("status")["version"] == 3
        assert main(place.command(steps=4)) == 0  # goes on
    lines = metrics(place.run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # Sampled by the weights that are trained; nothing is where all rewards of a group are the same.
    fresh = [line for line in lines if line["rollout/max_staleness"] == 0]
    assert all(line["train/policy_kl"] < 1e-5 for line in fresh if "train/policy_kl" in line)
    assert any("train/policy_kl" in line for line in lines)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    ages = {line["step"]: line["rollout/max_staleness"] for line in lines}
    assert ages == {step: step - 1 - old for step, old in oldest_versions(place).items()}
    assert max(ages.values()) <= 1
    assert max(oldest_versions(place).values()) >= 2
    assert place.server.version == "4"


@pytest.mark.slow
def test_a_killed_run_takes_its_steps_again_while_calls_wait(place: Place) -> None:
    pytest.importorskip("openai", reason="needs the package 'openai'")
    command = [sys.executable, "-m", "katgym", *place.command(steps=6)]
    config = place.folder / "rl.toml"
    config.write_text(config.read_text() + hold(place.folder, 3))
    path = os.pathsep.join([str(place.folder), ENVIRONMENT["PYTHONPATH"]])
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
    with place.agents():
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        wait_until(
            lambda: len(metrics(place.run)) == 3 or process.poll() is not None, "three steps"
        )
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        let_go(place.folder, 3)
        rewards = {line["step"]: line["rollout/reward"] for line in metrics(place.run)}
        version = place.told("status")["version"]
        # Of the last checkpoint, or of the step after that, which may be on its way still.
        assert version in (2, 3)
        again = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    assert again.returncode == 0, again.stderr
    lines = metrics(place.run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for step, reward in rewards.items():
        assert lines[step - 1]["rollout/reward"] == pytest.approx(reward)
    assert all(0 <= line["rollout/max_staleness"] <= 1 for line in lines)
    status = place.told("status")
    assert (status["version"], status["is_paused"]) == (6, False)


@pytest.mark.slow
def test_several_servers_shards_and_gateways_train_one_model(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="needs the package 'openai'")
    sharded, store = tmp_path / "sharded", f"{tmp_path / 'sharded'},{place.store}"
    upstreams = (place.server.url, sharded, "--upstream")
    with (
        HfServer(place.model) as other,
        gateway_of(*upstreams, other.url, "--shards", "2", *LIMITS) as url,
    ):
        place.command(gateway=f"{url},{place.gateway}", store=store)
        config = place.folder / "rl.toml"
        servers = "".join(
            f'[[policy.servers]]\nurl = "{one}#tiny"\n' for one in (place.server.url, other.url)
        )
        text = config.read_text().replace(f'uri = "vllm:{place.server.url}#tiny"', 'uri = "vllm"')
        text = text.replace("[rollouts]", f"{servers}[rollouts]")
        command = ["train", "rl", str(config), "--out", str(place.run)]
        here = started([sys.executable, str(AGENTS), "3", "2"], KATGYM_GATEWAY_URL=url)
        stores = [find_stores(str(folder)) for folder in (sharded, place.store)]
        with place.agents(), here:
            wait_until(lambda: all(map(num_groups, stores)), "a group in each")
            config.write_text(text)
            assert main(command) == 0
            config.write_text(text.replace("num_steps = 3", "num_steps = 5"))
            assert main(command) == 0  # goes on from its place in every store
        front = Place(tmp_path, place.model, other, url).told("status")
        assert [shard["version"] for shard in front["shards"]] == [5, 5]
        assert (front["version"], place.told("status")["version"]) == (5, 5)
        assert (place.server.version, other.version) == ("5", "5")
        assert not front["is_paused"]
    lines = metrics(place.run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(0 <= line["rollout/max_staleness"] <= 1 for line in lines)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    # Each group was whole in its store, and trained on once.
    with RolloutStore.open(place.run / "rollouts") as ours:
        trained = [record.session_id for record in ours.sessions()]
    assert len(trained) == len(set(trained)) == 5 * 2 * 3
    read = []
    for folder in (*store_folders(sharded), place.store):
        with RolloutStore.open(folder) as theirs:
            read.append(sum(theirs.has_session(session_id) for session_id in trained))
    assert sum(read) == len(trained) and min(read[0] + read[1], read[2]) > 0


def num_groups(stores: list[Path]) -> int:
    """Return how many groups are complete."""
    with contextlib.closing(StoreCursors(stores, group_size=3)) as cursors:
        return len(list(cursors.groups()))


def failed(place: Place, capsys: pytest.CaptureFixture[str], code: int, **told: str) -> str:
    """Run the command, and return what it says."""
    capsys.readouterr()
    assert main(place.command(**told)) == code
    return " ".join(capsys.readouterr().err.split())


def test_who_lets_nobody_in_or_is_not_there_is_told_with_what_to_start(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = failed(place, capsys, 1, gateway="http://127.0.0.1:9")
    assert "no katgym gateway answers at http://127.0.0.1:9. Start one: katgym gateway" in text
    assert f"--upstream {place.server.url} --store {place.store} --port 9" in text
    text = failed(place, capsys, 2, store=str(place.folder / "none"))
    assert "there is no rollout store at" in text and "katgym gateway --upstream URL" in text
    monkeypatch.setenv("KATGYM_GATEWAY_KEY", "other")
    text = failed(place, capsys, 2)
    assert "does not know this key: set KATGYM_GATEWAY_KEY" in text
    assert place.server.num_updates == 0


@pytest.mark.slow
def test_gateways_of_other_runs_and_servers_are_refused(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.told("resume", version=7)
    text = failed(place, capsys, 2)
    assert "has weights of version 7, and this run has taken 0 steps" in text
    assert "a store of its own" in text
    assert place.told("status")["is_paused"] is False
    with (
        HfServer(place.model) as other,
        gateway_of(place.server.url, tmp_path / "two", "--upstream", other.url) as url,
    ):
        text = failed(place, capsys, 2, gateway=url)
    assert "asks 2 model servers" in text and "the run's weights go to 1" in text
    assert f"not to {other.url}. Name all in [[policy.servers]]" in text
