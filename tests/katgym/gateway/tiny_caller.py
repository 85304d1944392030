"""A model of two tiny layers, shaped like Qwen3, that calls a tool every now and then.

Its weights are random, but for one thing: after some tokens it expects certain others, so that
what it samples holds tool calls, one or several. A call's JSON is a single token of its tokenizer.

Not here: servers of it (`test_gateway_vllm.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from byte_tokenizer import QWEN_TOKENS, byte_tokenizer  # noqa: E402 - after the skips
from random_qwen import random_qwen  # noqa: E402

VOCAB_SIZE = 288
CALLS = [
    '\n{"name": "look", "arguments": {"x": 1}}\n',
    '\n{"name": "look", "arguments": {"x": 2}}\n',
]
CONTROL = [*QWEN_TOKENS, *CALLS]
FOLLOWS = [
    ("\n", "<tool_call>"),
    ("<tool_call>", CALLS[0]),
    ("<tool_call>", CALLS[1]),
    (CALLS[0], "</tool_call>"),
    (CALLS[1], "</tool_call>"),
    ("</tool_call>", "<tool_call>"),
    ("</tool_call>", "<|im_end|>"),
]
STRENGTH = 7.0
"""Logits that an expected token has above the others."""
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] or '' }}{% for c in m['tool_calls'] or [] %}<tool_call>
{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments'] | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def save_tiny_caller(folder: Path) -> Any:
    """Write the model and its tokenizer; return the model."""
    tokenizer, model = _tokenizer(), _model()
    expect(model, tokenizer)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return model


def _tokenizer() -> Any:
    tokenizer = byte_tokenizer(CONTROL)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model() -> Any:
    torch.manual_seed(0)  # `expect` draws from the same
    return random_qwen(
        seed=None, vocab_size=VOCAB_SIZE, max_position_embeddings=8192, initializer_range=0.1
    ).eval()


def expect(model: Any, tokenizer: Any) -> None:
    """Make the tokens of `FOLLOWS` likely after their predecessors."""
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.normal_(0.0, 1.0)  # so that the residual stream stays near the last token's own
        for before, after in FOLLOWS:
            direction = embedding[_only(tokenizer, before)]
            head[_only(tokenizer, after)] += STRENGTH * direction / direction.norm() ** 2


def _only(tokenizer: Any, text: str) -> int:
    (token,) = tokenizer.encode(text, add_special_tokens=False)
    return int(token)
