"""New weights for a real vLLM server: adapters, all weights, requests frozen in the middle.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer

Not here: the order of the calls and their failures (`test_weight_sync.py`).
"""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from vllm_servers import save, server_of, tiny_model

from katgym.errors import PolicyError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.vllm_client import from_uri
from katgym.vllm_server import TokenClient, TokenRequest
from katgym.vllm_server.token_api import UNVERIFIED
from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.lora_sync import LoraSync
from katgym_trainer.weight_sync.pause import PauseAsleep
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.served_weights import scores, tied_head, write_head

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


def test_adapters_are_exchanged_while_two_policies_sample(server, model_folder, tmp_path):
    """Every token has the log-probability of the version that it is reported with."""
    model = add_adapters(tiny_model(), TrainerConfig(lora_rank=8)).eval()
    versions = {}

    async def run():
        sync = LoraSync([server.url], "ours", folder=tmp_path / "adapters")
        shake(model, 1)
        versions[1] = copy.deepcopy(model)
        times = [await sync.sync_weights(model, 1)]
        uri = f"{server.url}#ours?tokenizer={model_folder}"
        policies = [from_uri(uri), from_uri(uri)]
        is_done, found = asyncio.Event(), []
        tasks = [
            asyncio.create_task(sample_until(policy, is_done, 1000 * i, found))
            for i, policy in enumerate(policies)
        ]
        for version in range(2, 30):  # until some were in the middle of a completion
            num_found = len(found)
            while len(found) < num_found + 2:
                assert not any(task.done() for task in tasks), tasks
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02 * (version % 5))
            shake(model, version)
            versions[version] = copy.deepcopy(model)
            times.append(await sync.sync_weights(model, version, policies=policies))
            if version >= 4 and any(len(sampled.version_spans) > 1 for sampled in found):
                break
        is_done.set()
        await asyncio.gather(*tasks)
        for closing in (*policies, sync):
            await closing.aclose()
        assert [policy.policy_version for policy in policies] == [version, version]
        return times, found

    times, found = asyncio.run(run())
    assert max(time.difference for time in times) <= 1e-4
    spans = [(sampled, span) for sampled in found for span in sampled.version_spans]
    worst = max(
        difference(versions[span.version], sampled, span.start, span.end) for sampled, span in spans
    )
    assert worst <= 1e-4
    assert {span.version for _, span in spans} >= {1, 2, 3}
    assert any(len(sampled.version_spans) > 1 for sampled in found), "none was frozen in the middle"
    for sampled in found:
        assert sampled.policy_version == min(span.version for span in sampled.version_spans)
    names = sorted(path.name for path in (tmp_path / "adapters").iterdir())
    assert names == ["current", "v4"]


def test_all_weights_of_an_untied_model(server, tmp_path):
    model = tiny_model()

    async def run():
        sync = ReloadSync([server.url], "tiny", folder=tmp_path / "weights")
        client = TokenClient(sync.controls[0].http, has_generate=True)
        try:
            for version in (11, 12):
                shake(model, version)
                times = await sync.sync_weights(model, version)
                assert times.difference <= 1e-4
            request = TokenRequest(model="tiny", prompt_ids=PROMPT, max_tokens=50, seed=1)
            (sampled,) = await client.generate(request)
            return sampled, await sync.controls[0].weight_version()
        finally:
            await sync.aclose()

    sampled, version = asyncio.run(run())
    assert version == "12"
    assert [span.version for span in sampled.version_spans] == [12]
    assert difference(model, sampled, 0, len(sampled.token_ids)) <= 1e-4


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
        sync = Missing([server.url], "tiny", folder=tmp_path / "none")
        try:
            with pytest.raises(PolicyError, match="/collective_rpc answered 500"):
                await sync.sync_weights(tiny_model(), 31)
            control = sync.controls[0]
            return await control.is_paused(), await control.weight_version()
        finally:
            await sync.aclose()

    assert asyncio.run(run()) == (False, "unverified")
    assert server.is_alive


def test_weights_in_several_files_and_a_tied_head_are_all_read(vllm_python, tmp_path):
    """As several ranks write them."""

    class Several(ReloadSync):
        def write(self, model, folder):
            model.save_pretrained(folder, max_shard_size="50KB")
            assert len(list(folder.glob("model-*.safetensors"))) > 2
            name, weight = tied_head(model)
            write_head({name: weight.contiguous()}, folder)

    async def run(url):
        sync = Several([url], "tiny", folder=tmp_path / "several")
        try:
            return await sync.sync_weights(tiny_model(seed=3, is_tied=True), 1)
        finally:
            await sync.aclose()

    folder = save(tiny_model(is_tied=True), tmp_path / "tied")
    with server_of(folder, tmp_path / "server.log", vllm_python) as tied:
        assert asyncio.run(run(tied.url)).difference <= 1e-4
