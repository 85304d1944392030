"""New weights for a real vLLM server: adapters, all weights, requests frozen in the middle.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer

Not here: the order of the calls and their failures (`test_weight_sync.py`).
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import aclosing

import pytest
import torch
from vllm_servers import save, server_of, tiny_model
from waiting import wait_until_async

from katgym.errors import PolicyError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.vllm_client import from_uri
from katgym.vllm_server import TokenClient, TokenRequest
from katgym.vllm_server.token_api import GENERATE_ROUTE, UNVERIFIED, generate_body, parse_generate
from katgym.vllm_server.weight_receiver import WeightReceiver
from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.delta_sync import DeltaSync
from katgym_trainer.weight_sync.lora_sync import LoraSync
from katgym_trainer.weight_sync.pause import PauseAsleep
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.served_weights import scores

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """An untied tiny model as a folder."""
    return save(tiny_model(), tmp_path_factory.mktemp("untied"))


@pytest.fixture(scope="module")
def server(model_folder, tmp_path_factory, vllm_python):
    """A server of it that takes adapters and new weights."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    options = {"has_lora": True, "max_lora_rank": 16}
    with server_of(model_folder, log, vllm_python, **options) as running:
        yield running


def shake(model, seed, std=0.05):
    """Change a model's adapters; its weights where it has none."""
    named = list(model.named_parameters())
    has_adapter = any("lora_B" in name for name, _ in named)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in named:
            if "lora_B" in name or not has_adapter:
                parameter.add_(torch.randn_like(parameter) * std)


def difference(model, sampled, start, end):
    """Largest difference of a completion's tokens start to end from the model's."""
    found = scores(model, [*PROMPT, *sampled.token_ids])[len(PROMPT) - 1 :]
    pairs = zip(found[start:end], sampled.policy_logprobs[start:end], strict=True)
    return max(abs(ours - theirs) for ours, theirs in pairs)


async def sample_until(policy, is_done, seed, found):
    """Sample again and again until told to stop; every completion is added to `found`."""
    while not is_done.is_set():
        seed += 1
        found.append(
            await policy.generate(
                PROMPT, sampling=Sampling(), max_tokens=120, seed=seed, session_id=str(seed)
            )
        )


def test_adapters_are_exchanged_while_policies_sample_and_nobody_waits(
    server, model_folder, tmp_path
):
    """All tokens of a completion are of the adapter that it was asked of."""
    model = add_adapters(tiny_model(), TrainerConfig(lora_rank=8)).eval()
    versions, folder = {}, tmp_path / "adapters"
    before = server.log_file.read_text().count('"POST /pause')
    found, tasks = [], []

    class Watched(LoraSync):
        """Has an adapter for others once one more answer was sampled beside it."""

        async def update(self, model, version):
            num_found = len(found)
            await super().update(model, version)
            await wait_until_async(lambda: not tasks or len(found) > num_found, "an answer")

    async def run():
        sync = Watched([server.url], "ours", folder=folder)

        async def push(version, policies=()):
            shake(model, version)
            versions[version] = copy.deepcopy(model)
            return await sync.sync_weights(model, version, policies=policies)

        times = [await push(1)]
        policies = [
            from_uri(f"{server.url}#{sync.served_name}?tokenizer={model_folder}") for _ in range(2)
        ]
        for policy in policies:
            sync.tell(policy)
        lasting = generate_body(
            TokenRequest(model=sync.served_name, prompt_ids=PROMPT, max_tokens=900, seed=7)
        )
        lasting["sampling_params"]["ignore_eos"] = True
        running = asyncio.create_task(sync.controls[0].http.post(GENERATE_ROUTE, lasting))
        is_done, late = asyncio.Event(), []
        num_meanwhile = []
        tasks.extend(
            asyncio.create_task(sample_until(policy, is_done, 1000 * i, found))
            for i, policy in enumerate(policies)
        )
        for version in range(2, 5):
            while len(found) < 2 * version:
                assert not any(task.done() for task in tasks), tasks
                await asyncio.sleep(0.01)
            num_found = len(found)
            times.append(await push(version, policies))
            num_meanwhile.append(len(found) - num_found)
            late.append((len(found), version))
            # What is asked from here on is the new adapter's.
            fresh = await policies[1].generate(
                PROMPT, sampling=Sampling(), max_tokens=20, seed=version, session_id="fresh"
            )
            assert [span.version for span in fresh.version_spans] == [version]
            found.append(fresh)
            if version == 2:
                in_use = await sync.controls[0].loras_in_use()
                assert running.done() or any(name.startswith("ours@v1-") for name in in_use)
        is_done.set()
        await asyncio.gather(*tasks)
        found.extend(parse_generate(await running, version=1))
        cards = sorted(name for name in await sync.controls[0].models() if name != "tiny")
        for closing in (*policies, sync):
            await closing.aclose()
        return times, found, cards, sum(num_meanwhile), late

    times, found, cards, num_meanwhile, late = asyncio.run(run())
    assert max(time.difference for time in times) <= 1e-4
    assert [time.stalled_s for time in times] == [0, 0, 0, 0]
    assert server.log_file.read_text().count('"POST /pause') == before
    assert all(len(sampled.version_spans) == 1 for sampled in found)
    spans = [(sampled, sampled.version_spans[0]) for sampled in found]
    assert {span.version for _, span in spans} == {1, 2, 3, 4}
    assert len(found[-1].token_ids) == 900
    # Some were in the middle when the next adapter came, and others were answered meanwhile.
    assert any(s.policy_version < version for at, version in late for s in found[at:-1])
    assert num_meanwhile > 0
    worst = max(
        difference(versions[span.version], sampled, span.start, span.end) for sampled, span in spans
    )
    assert worst <= 1e-4
    assert {name[:8] for name in cards} >= {"ours@v3-", "ours@v4-"}
    kept = {path.name for path in folder.iterdir()}
    assert {"v3", "v4"} <= kept and kept == {name.split("@")[1].split("-")[0] for name in cards}


def test_all_weights_of_an_untied_model(server, tmp_path):
    model = tiny_model()

    async def run():
        async with aclosing(ReloadSync([server.url], "tiny", folder=tmp_path / "weights")) as sync:
            client = TokenClient(sync.controls[0].http, has_generate=True)
            for version in (11, 12):
                shake(model, version)
                times = await sync.sync_weights(model, version)
                assert times.difference <= 1e-4
            request = TokenRequest(model="tiny", prompt_ids=PROMPT, max_tokens=50, seed=1)
            (sampled,) = await client.generate(request)
            return sampled, await sync.controls[0].weight_version()

    sampled, version = asyncio.run(run())
    assert version == "12"
    assert [span.version for span in sampled.version_spans] == [12]
    assert difference(model, sampled, 0, len(sampled.token_ids)) <= 1e-4


def test_deltas_reach_a_server_that_shares_no_folder_with_the_trainer(server, tmp_path):
    model = tiny_model()

    async def run(receiver):
        async with aclosing(
            DeltaSync([server.url], "tiny", receivers=[receiver.url], folder=tmp_path / "here")
        ) as sync:
            sent = []
            for version in (13, 14, 15):
                with torch.no_grad():
                    model.lm_head.weight[version] += 1.0
                assert (await sync.sync_weights(model, version)).difference <= 1e-4
                sent.append(sync.num_sent_bytes)
            return sent, await sync.controls[0].weight_version()

    with WeightReceiver(tmp_path / "there") as receiver:
        sent, version = asyncio.run(run(receiver))
    assert version == "15"
    assert max(sent[1] - sent[0], sent[2] - sent[1]) < sent[0] / 20


def test_a_server_that_sleeps_takes_all_weights_and_goes_on(server, model_folder, tmp_path):
    model = tiny_model()
    versions = {41: copy.deepcopy(model)}

    async def run():
        sync = ReloadSync([server.url], "tiny", folder=tmp_path / "weights")
        policy = from_uri(f"{server.url}#tiny?tokenizer={model_folder}")
        arguments = {"sampling": Sampling(), "max_tokens": 400, "seed": 0, "session_id": "s"}
        try:
            await sync.sync_weights(model, 41)
            running = asyncio.create_task(policy.generate(PROMPT, **arguments))
            await asyncio.sleep(0.2)
            await sync.controls[0].sleep(sync.sleep_level)
            await sync.controls[0].set_weight_version(UNVERIFIED)  # as runs do: it has none
            queued = asyncio.create_task(policy.generate(PROMPT, **arguments))
            shake(model, 42)
            versions[42] = model
            weights = await sync.ready(model, 42)
            assert not queued.done()
            times = await sync.deliver(weights, pause=PauseAsleep())
            assert times.difference <= 1e-4
            return await running, await queued
        finally:
            await sync.aclose()
            await policy.aclose()

    running, queued = asyncio.run(run())
    assert {span.version for span in queued.version_spans} == {42}
    for sampled in (running, queued):
        for span in sampled.version_spans:
            assert difference(versions[span.version], sampled, span.start, span.end) <= 1e-4


def test_weights_other_than_the_trainers_are_noticed_and_refused(server, model_folder, tmp_path):
    class Wrong(ReloadSync):
        def write(self, model, folder):
            super().write(tiny_model(seed=5), folder)

    async def run():
        sync = Wrong([server.url], "tiny", folder=tmp_path / "wrong")
        policy = from_uri(f"{server.url}#tiny?tokenizer={model_folder}")
        arguments = {"sampling": Sampling(), "max_tokens": 4, "seed": 0, "session_id": "s"}
        try:
            with pytest.raises(WeightSyncError, match=r"are not the trainer's: token \d+ of"):
                await sync.sync_weights(tiny_model(), 21)
            assert await sync.controls[0].is_paused() is False
            with pytest.raises(PolicyError, match="weights whose sync failed"):
                await policy.generate(PROMPT, **arguments)
            mended = ReloadSync([server.url], "tiny", folder=tmp_path / "mended")
            await mended.sync_weights(tiny_model(), 22)
            await mended.aclose()
            return await policy.generate(PROMPT, **arguments)
        finally:
            await sync.aclose()
            await policy.aclose()

    assert asyncio.run(run()).policy_version == 22


def test_an_update_that_fails_leaves_the_server_sampling(server, tmp_path):
    class Missing(ReloadSync):
        async def prepare(self, model, version):
            """Nothing is written."""

    async def run():
        async with aclosing(Missing([server.url], "tiny", folder=tmp_path / "none")) as sync:
            with pytest.raises(PolicyError, match="/collective_rpc answered 500"):
                await sync.sync_weights(tiny_model(), 31)
            control = sync.controls[0]
            return await control.is_paused(), await control.weight_version()

    assert asyncio.run(run()) == (False, "unverified")
    assert server.is_alive
