"""All weights of SmolLM2-135M, whose LM head is its embeddings, for a real vLLM server.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer

Not here: adapters, and what is sampled meanwhile (`test_weight_sync_servers.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
import torch
from transformers import AutoModelForCausalLM

from katgym.policies.hf.smollm2 import model_directory
from katgym.vllm_server import VllmServer, VllmServerConfig
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.served_weights import ServedModel, tied_head

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def server(tmp_path_factory, vllm_python):
    """A server of the model in float32."""
    config = VllmServerConfig(
        model=str(model_directory()),
        served_name="smollm2",
        python=vllm_python,
        dtype="float32",
        max_model_len=512,
        has_rl_routes=True,
        extra_args=("--enforce-eager",),  # compiling takes three minutes
        log_file=tmp_path_factory.mktemp("vllm") / "server.log",
    )
    with VllmServer(config) as running:
        yield running


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(model_directory(), dtype=torch.float32).eval()


def shake(model, seed):
    """Change every weight a little, as some steps of an optimizer do."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 1e-3)


def sync_once(sync, model, version):
    async def run():
        async with aclosing(sync):
            return await sync.sync_weights(model, version)

    return asyncio.run(run())


def test_a_tied_head_arrives_because_it_is_sent(server, model, tmp_path):
    assert tied_head(model)[0] == "lm_head.weight"
    shake(model, 1)

    class Several(ReloadSync):
        """Writes several files, as several ranks do."""

        def write(self, model, folder):
            ServedModel.of(model).write(folder, max_file_bytes=200 << 20)
            assert len(list(folder.glob("model-*.safetensors"))) > 2

    sync = Several([server.url], "smollm2", folder=tmp_path / "weights")
    assert sync_once(sync, model, 1).difference <= 1e-4


def test_the_probe_finds_a_tied_head_that_was_not_sent(server, model, tmp_path):
    """vLLM 0.32 keeps its old head then; when this fails, the repeated head can go."""
    shake(model, 2)
    folder = tmp_path / "weights"
    bare = ReloadSync([server.url], "smollm2", folder=folder, should_repeat_head=False)
    with pytest.raises(WeightSyncError, match="the LM head was not sent"):
        sync_once(bare, model, 2)
    mended = ReloadSync([server.url], "smollm2", folder=folder)
    assert sync_once(mended, model, 3).difference <= 1e-4
