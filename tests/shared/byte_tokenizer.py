"""A tokenizer of one token a byte and the control tokens of chats: what it encodes can be read.

Not here: real vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# Plain ChatML, the chat format of SmolLM2.
CHATML = (
    "{% for m in messages %}SYSTEM<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SYSTEM = (
    "{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nTEXT<|im_end|>\n{% endif %}"
)
QWEN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
QWEN_TOKENS += ("<think>", "</think>")


def byte_tokenizer(extra: Sequence[str] = (), *, system: str = "") -> Any:
    """Return the tokenizer.

    extra: further tokens. system: what the chat template says first where nobody does; "": nothing.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens(list(extra))
    opening = _SYSTEM.replace("TEXT", system) if system else ""
    tokenizer.chat_template = CHATML.replace("SYSTEM", opening)
    return tokenizer
