"""Writes the model that both sides begin with: Qwen3's shape, a million random weights.

    python trainer/benchmarks/peers/sum_model.py FOLDER --seed 0

The tokenizer is byte-level BPE of 320 tokens over such prompts and answers.
"""

from __future__ import annotations

import argparse
import random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return the tokenizer."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    numbers = random.Random(0)
    texts = [
        f"What is {numbers.randint(0, 9)} + {numbers.randint(0, 9)}?"
        f" The answer is {numbers.randint(0, 18)}."
        for _ in range(500)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    found.chat_template = TEMPLATE
    return found


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    own = tokenizer()
    torch.manual_seed(args.seed)
    config = transformers.Qwen3Config(
        vocab_size=len(own),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(args.folder)
    own.save_pretrained(args.folder)


if __name__ == "__main__":
    main()
