"""What is sent to servers: heads that are tied, adapters that are merged, folders of versions.

Not here: how it gets there (`test_weight_sync.py`).
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tiny_qwen import tiny_qwen

from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.folder_sync import remove_versions, version_folder
from katgym_trainer.weight_sync.served_weights import (
    ServedModel,
    scores,
    tied_head,
)


def test_a_tied_head_is_sent_beside_the_embeddings(tmp_path):
    model = tiny_qwen().eval()
    name, weight = tied_head(model)
    assert name == "lm_head.weight"
    sent = dict(ServedModel(model).weights())
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    assert "lm_head.weight" not in dict(ServedModel(model).weights(should_repeat_head=False))
    ServedModel(model).write(tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == ["model.safetensors", "tied_head.safetensors"]
    assert torch.equal(load_file(tmp_path / "tied_head.safetensors")[name], weight)
    assert not (tmp_path / "model.safetensors.index.json").exists()


def test_an_untied_model_has_one_head(tmp_path):
    model = tiny_qwen(tie_word_embeddings=False)
    assert tied_head(model) is None
    assert [name for name, _ in ServedModel(model).weights()].count("lm_head.weight") == 1
    ServedModel(model).write(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_adapters_are_merged_into_what_is_sent(is_tied, tmp_path):
    model = add_adapters(tiny_qwen(tie_word_embeddings=is_tied), TrainerConfig(lora_rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    expected = scores(model, [5, 6, 7, 8])
    sent = dict(ServedModel(model).weights())
    ServedModel(model).write(tmp_path)
    for state in (sent, load_file(tmp_path / "model.safetensors")):
        plain = tiny_qwen(tie_word_embeddings=is_tied)
        plain.load_state_dict(state, strict=False)
        assert scores(plain, [5, 6, 7, 8]) == pytest.approx(expected, abs=1e-4)
        assert not [name for name in state if "lora" in name or "base" in name]


def test_only_versions_are_removed(tmp_path):
    for name in ("v1", "v2", "v12", "v2.replaced", ".unfinished-v3-x", "vital", "current"):
        (tmp_path / name).mkdir()
    remove_versions(tmp_path, [12, 13])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "v12", "vital"]
    assert version_folder(tmp_path, 12) == tmp_path / "v12"
