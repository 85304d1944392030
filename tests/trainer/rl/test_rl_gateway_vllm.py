"""Agents of OpenAI's SDK play through a gateway, and a run trains an adapter behind it.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer/rl

Not here: what goes wrong without a model server (`test_rl_gateway.py`, `test_store_stream.py`).
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_process import KEY, gateway_of, started
from rl_play import metrics
from vllm_servers import save, server_of, tiny_model

from katgym.cli.main import main
from katgym.gateway import GatewayClient
from katgym.rollout_store import RolloutStore

pytest.importorskip("openai", reason="needs the package 'openai'")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

AGENTS = Path(__file__).parent / "agents" / "play_digits.py"
NUM_GROUPS, GROUP_SIZE, MAX_STALENESS = 2, 4, 1
CONFIG = """
[model]
path = "{model}"
[policy]
uri = "vllm:{server}#ours"
gateway = "{gateway}"
max_context_tokens = 400
max_tokens = 8
[rollouts]
store = "{store}"
num_groups = {num_groups}
group_size = {group_size}
max_staleness = {max_staleness}
[train]
num_steps = 4
lora_rank = 4
learning_rate = 1e-3
[checkpoint]
every_steps = 2
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, vllm_python: str) -> Iterator[Any]:
    """Train for 4 steps, then for 2 more; yield the run's folder, the store and the gateway."""
    folder = tmp_path_factory.mktemp("played")
    model, store, run = save(tiny_model(), folder / "tiny"), folder / "store", folder / "run"
    server_of_it = server_of(model, folder / "log", vllm_python, has_lora=True, max_lora_rank=8)
    with pytest.MonkeyPatch.context() as patch, server_of_it as server:
        patch.setenv("KATGYM_GATEWAY_KEY", KEY)
        limits = ["--max-staleness", str(MAX_STALENESS)]
        limits += ["--sessions-per-version", str(NUM_GROUPS * GROUP_SIZE + 1)]
        forced = ["--model", "tiny", "--set", "sampling.temperature=1.0"]
        with gateway_of(server.url, store, *limits, *forced) as gateway:
            agents = [sys.executable, str(AGENTS), str(GROUP_SIZE), "2"]
            text = CONFIG.format(
                model=model, server=server.url, gateway=gateway, store=store,
                num_groups=NUM_GROUPS, group_size=GROUP_SIZE, max_staleness=MAX_STALENESS,
            )  # fmt: skip
            (folder / "rl.toml").write_text(text)
            command = ["train", "rl", str(folder / "rl.toml"), "--out", str(run)]
            with started(agents, KATGYM_GATEWAY_URL=gateway):
                assert main(command) == 0
                assert main([*command, "--steps", "6"]) == 0
            yield run, store, asyncio.run(status_of(gateway))


async def status_of(gateway: str) -> dict[str, Any]:
    async with GatewayClient(gateway) as client:
        return await client.status()


def test_every_step_trains_on_what_the_agents_sampled(played: Any) -> None:
    run, _, status = played
    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["rollout/num_rollouts"] == NUM_GROUPS * GROUP_SIZE for line in lines)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert all(line["rollout/turns"] == 2 for line in lines)
    assert all(0 <= line["sync/difference"] < 1e-4 for line in lines)
    assert (status["version"], status["is_paused"]) == (6, False)
    assert status["model"].startswith("ours@v6-")


def test_recorded_logprobs_are_those_of_the_weights_that_are_trained(played: Any) -> None:
    lines = metrics(played[0])
    assert lines[0]["rollout/max_staleness"] == 0
    # By chance all rewards of each group are the same in a step: then nothing is trained.
    trained = [line for line in lines if "train/policy_kl" in line]
    fresh = [line for line in trained if line["rollout/max_staleness"] == 0]
    assert trained and all(line["train/policy_kl"] < 1e-5 for line in fresh)
    assert all(math.isfinite(line["train/policy_kl"]) for line in trained)


def test_staleness_is_that_of_the_versions_in_the_store(played: Any) -> None:
    run, store, _ = played
    ages: dict[int, list[int]] = {}
    with RolloutStore.open(store) as theirs, RolloutStore.open(run / "rollouts") as ours:
        for record in ours.sessions():
            nodes = theirs.turns(record.session_id)
            oldest = min(span.version for node in nodes for span in node.tokens.version_spans)
            step = record.metadata["step"]
            ages.setdefault(step, []).append(step - 1 - oldest)
            assert [n.tokens.policy_logprobs for n in ours.turns(record.session_id)] == [
                n.tokens.policy_logprobs for n in nodes
            ]
        versions = [
            node.tokens.version_spans[0].version
            for record in theirs.sessions()
            for node in theirs.turns(record.session_id)
        ]
    assert len(set(versions)) >= 3 and max(versions) >= 3  # how many, the speed of both decides
    assert {step: max(found) for step, found in ages.items()} == {
        line["step"]: line["rollout/max_staleness"] for line in metrics(run)
    }
    assert max(max(found) for found in ages.values()) <= MAX_STALENESS


def test_held_out_sessions_are_measured_and_not_trained_on(played: Any) -> None:
    run, store, _ = played
    with RolloutStore.open(store) as theirs, RolloutStore.open(run / "rollouts") as ours:
        held_out = {r.session_id for r in theirs.sessions() if r.metadata.get("is_held_out")}
        trained = {record.session_id for record in ours.sessions()}
    assert len(held_out) >= 1
    assert not held_out & trained
    assert sum(line.get("eval/store/num_rollouts", 0) for line in metrics(run)) >= 1
