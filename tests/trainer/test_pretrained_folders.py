"""Models that are saved for others: what `from_pretrained` gives back is what was trained.

At the end: loading and saving show no bars of transformers, and leave its setting as it was.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import tokenizers
import torch
import transformers
from nightly import some_of
from tiny_model import TinyModel
from tiny_qwen import same, tiny_qwen, weights
from torch import Tensor
from transformers.utils import logging as bars

from katgym_trainer import Row
from katgym_trainer.models.adapters import merge_state
from katgym_trainer.models.pretrained import load_model, save_model
from katgym_trainer.models.progress_bars import no_progress_bars
from katgym_trainer.trainer import Trainer

IDS = torch.tensor([[3, 4, 5, 6, 7]])
# TODO(peft>0.21): drop when peft asks for `is_activation_checkpointing`.
OLD_NAME = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
ROWS = [Row([3, 10 + i, 20 + i, 30 + i], [0, 0, 1, 1]) for i in range(4)]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=IDS).logits
    return found


def trained(model: Any, **args: Any) -> Trainer:
    trainer = Trainer(model, "sft", args={"learning_rate": 0.01, **args})
    for _ in range(2):
        trainer.step_rows(ROWS)
    return trainer


def loaded(path: Path, **more: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, **more)


@pytest.mark.parametrize(
    ("dtype", "is_tied"), some_of(itertools.product(["float32", "bfloat16"], [True, False]), 2)
)
def test_a_saved_model_is_the_trained_one(dtype: str, is_tied: bool, tmp_path: Path) -> None:
    trainer = trained(tiny_qwen(tie_word_embeddings=is_tied), dtype=dtype)
    trainer.save_pretrained(tmp_path / "model")
    found = loaded(tmp_path / "model")
    assert same(weights(found), weights(trainer.model))
    assert torch.equal(logits(found), logits(trainer.model))
    assert found.dtype == getattr(torch, dtype)
    assert (tmp_path / "model" / "generation_config.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("targets", "is_tied"),
    some_of(itertools.product([None, ["q_proj", "mlp.up_proj"]], [True, False]), 2),
)
def test_adapters_alone_are_trained_and_are_merged_into_a_copy(
    targets: list[str] | None, is_tied: bool, tmp_path: Path
) -> None:
    plain = tiny_qwen(tie_word_embeddings=is_tied)
    before = logits(plain)
    trainer = trained(
        tiny_qwen(tie_word_embeddings=is_tied), lora_rank=2, lora_targets=targets, lora_alpha=6.0
    )
    after = weights(trainer.model)
    adapters = {name for name in after if "lora_" in name}
    assert len(adapters) == (2 if targets else 7) * 2 * 2
    assert {n for n, p in trainer.model.named_parameters() if p.requires_grad} == adapters
    for name, value in weights(plain).items():
        (own,) = (n for n in after if n.replace(".base_layer", "").endswith(f"model.{name}"))
        assert torch.equal(after[own], value)
    trainer.save_pretrained(tmp_path / "merged")
    found = loaded(tmp_path / "merged")
    assert float((logits(found) - logits(trainer.model)).abs().max()) < 1e-5
    assert float((logits(found) - before).abs().max()) > 1e-2
    assert same(weights(trainer.model), after)  # nothing was merged into the trained one
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_merging_is_pefts(tmp_path: Path) -> None:
    trainer = trained(tiny_qwen(), lora_rank=2, dtype="bfloat16")
    state = {name: value.clone() for name, value in merge_state(trainer.model).items()}
    wanted = trainer.model.merge_and_unload().state_dict()
    assert same(state, dict(wanted))


@pytest.mark.filterwarnings(OLD_NAME)
def test_adapters_are_saved_by_themselves(tmp_path: Path) -> None:
    trainer = trained(tiny_qwen(), lora_rank=2)
    trainer.save_pretrained(tmp_path / "adapter", is_merged=False)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 2 and config["lora_alpha"] == 4
    found = peft.PeftModel.from_pretrained(tiny_qwen(), tmp_path / "adapter")
    assert torch.equal(logits(found), logits(trainer.model))


def test_adapters_begin_as_nothing_and_as_the_seed_says() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, same_seed, other = (
        Trainer(tiny_qwen(), "sft", args={"lora_rank": 2, "seed": seed}) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(one.model), logits(tiny_qwen()))
    assert same(weights(one.model), weights(same_seed.model))
    assert not same(weights(one.model), weights(other.model))


def test_adapters_in_bfloat16_have_float32_masters() -> None:
    trainer = Trainer(tiny_qwen(), "sft", args={"lora_rank": 2, "dtype": "bfloat16"})
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
    assert {m.dtype for _, m in trainer._masters.named()} == {torch.float32}


@pytest.mark.filterwarnings(OLD_NAME)
def test_adapters_that_the_model_has_are_trained(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(tiny_qwen(), config)
    trainer = trained(model)
    assert trainer.model is model
    trainer.save_pretrained(tmp_path / "merged")
    found = loaded(tmp_path / "merged")
    assert float((logits(found) - logits(model)).abs().max()) < 1e-5
    with pytest.raises(ValueError, match="lora_rank=2 adds adapters, and the model has some"):
        Trainer(model, "sft", args={"lora_rank": 2})


@pytest.mark.filterwarnings(OLD_NAME)
def test_adapters_of_other_kinds_are_not_merged(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0, use_dora=True)
    trainer = Trainer(peft.get_peft_model(tiny_qwen(), config), "sft")
    with pytest.raises(ValueError, match="adapter 'default' has use_dora, and only plain LoRA"):
        trainer.save_pretrained(tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def test_targets_that_are_no_linear_layers_of_the_decoder_are_refused(
    subtests: pytest.Subtests,
) -> None:
    no_linear = "is no linear layer within the decoder"
    for targets, words in [
        (["q_proj", "lm_head"], rf"has 'lm_head', and '.*lm_head' {no_linear}"),
        (["q_proj", "embed_tokens"], rf"has 'embed_tokens', and '.*embed_tokens' {no_linear}"),
        (["q_proj", "mlp"], rf"has 'mlp', and '.*mlp' {no_linear}"),
        (["q_proj", "nope"], "has 'nope', and no layer's name ends in it"),
        (["proj"], "has 'proj', and no layer's name ends in it"),
    ]:
        with subtests.test(targets=targets), pytest.raises(ValueError, match=words):
            Trainer(tiny_qwen(), "sft", args={"lora_rank": 2, "lora_targets": targets})


def tokenizer() -> Any:
    words = {f"w{i}": i for i in range(60)}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole)


def test_a_folder_is_loaded_with_its_tokenizer_and_saved_with_it(tmp_path: Path) -> None:
    tiny_qwen().save_pretrained(tmp_path / "first")
    assert Trainer(tmp_path / "first", "sft").tokenizer is None
    tokenizer().save_pretrained(tmp_path / "first")
    trainer = Trainer(str(tmp_path / "first"), "sft", args={"dtype": "bfloat16"})
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
    trainer.step_rows(ROWS)
    trainer.save_pretrained(tmp_path / "second")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    assert found.convert_tokens_to_ids("w7") == 7
    assert same(weights(loaded(tmp_path / "second")), weights(trainer.model))


def test_what_cannot_be_saved_or_loaded_is_told(tmp_path: Path) -> None:
    trainer = Trainer(tiny_qwen(), "sft")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not an empty folder; name a new one"):
        trainer.save_pretrained(tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        trainer.save_pretrained(tmp_path / "full" / "mine.txt")
    with pytest.raises(ValueError, match="writes adapters alone, and the model has none"):
        trainer.save_pretrained(tmp_path / "new", is_merged=False)
    with pytest.raises(ValueError, match="TinyModel is not a model of transformers; save_checkp"):
        Trainer(TinyModel(), "sft").save_pretrained(tmp_path / "new")
    with pytest.raises(ValueError, match=r"cannot load .*full' as a folder: "):
        Trainer(tmp_path / "full", "sft")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    trainer.save_pretrained(tmp_path / "empty")
    assert same(weights(loaded(tmp_path / "empty")), weights(tiny_qwen()))


def test_models_are_saved_and_loaded_without_bars(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model: Any = tiny_qwen()
    model.save_pretrained(tmp_path / "by_transformers")
    assert "Writing model shards" in capfd.readouterr().err  # what is to be silenced
    save_model(model, None, tmp_path / "ours", is_merged=True)
    load_model(str(tmp_path / "ours"), torch.float32)
    assert capfd.readouterr().err == ""
    model.save_pretrained(tmp_path / "again")
    assert "Writing model shards" in capfd.readouterr().err


def test_a_hook_of_the_users_own_is_put_back_also_after_an_error() -> None:
    calls: list[str] = []

    def hook(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(kwargs["desc"])
        return bars.EmptyTqdm(*args, **kwargs)

    before = bars.set_tqdm_hook(hook)
    try:
        with pytest.raises(KeyError), no_progress_bars():
            bars.tqdm([1], desc="within")
            raise KeyError
        bars.tqdm([1], desc="after")
    finally:
        bars.set_tqdm_hook(before)
    assert calls == ["after"]
