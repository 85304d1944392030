"""TRL's own GRPO trainer on an env of katgym's: a random model, two steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from katgym_plugin_trl import environment_class, reward, rows

torch = pytest.importorskip("torch", reason="needs torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's own imports
    trl = pytest.importorskip("trl", reason="needs trl")

from datasets import Dataset  # noqa: E402 - trl is there
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from trl.chat_template_utils import qwen3_chat_template  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's, transformers' and torch's own

ENV_ID = "katgym/TreasureHunt-v1"
OPEN = '<tool_call>\n{{"name": "open_chest", "arguments": {{"number": {}}}}}\n</tool_call>'
CALLS = [OPEN.format(number) for number in (1, 2)]
END = "<|im_end|>"


def tokenizer() -> PreTrainedTokenizerFast:
    """Return one of bytes, in which a whole call of a tool is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, eos_token=END, pad_token="<|endoftext|>", padding_side="left"
    )
    made.add_tokens(["<|im_start|>"], special_tokens=True)
    made.add_tokens([AddedToken(call, normalized=False) for call in CALLS])
    made.chat_template = qwen3_chat_template
    return made


def model(vocabulary: int) -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=8192,
        )
    ).float()


def test_trl_trains_a_model_on_an_env_through_its_environments(tmp_path: Path) -> None:
    words = tokenizer()
    playable = set(words.convert_tokens_to_ids([*CALLS, END]))
    random_model = model(len(words))
    before = {name: value.clone() for name, value in random_model.state_dict().items()}
    earned: list[float | None] = []

    def earn(completions: Any, environments: Any, **columns: Any) -> list[float | None]:
        earned.extend(reward(completions, environments, **columns))
        return earned[-len(completions) :]

    trainer = trl.GRPOTrainer(
        model=random_model,
        processing_class=words,
        environment_factory=environment_class(ENV_ID, level=1),
        train_dataset=Dataset.from_list(rows(ENV_ID, num_tasks=4, seed=0)),
        reward_funcs=earn,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=512,
            max_tool_calling_iterations=1,
            learning_rate=0.01,
            beta=0.0,
            seed=0,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            gradient_checkpointing=False,
            # What a random model says is no call of a tool: it chooses among two calls and the end.
            generation_kwargs={"suppress_tokens": sorted(set(range(len(words))) - playable)},
        ),
    )
    trainer.train()

    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 2 and len(earned) == 8
    assert set(earned) == {0.0, 1.0}
    for step, row in enumerate(logged):
        values = earned[4 * step : 4 * step + 4]
        assert row["reward"] == pytest.approx(sum(values) / 4)  # type: ignore[arg-type]  # all are valid
        assert row["tools/call_frequency"] > 0 and row["tools/failure_frequency"] == 0
    after = random_model.state_dict()
    assert any(not torch.equal(after[name], value) for name, value in before.items())
