"""A byte-level BPE tokenizer made for a few environments, with Qwen3's control tokens and chats.

Every digit is a token. A line that most conversations of an environment hold word for word, such as
a tool's schema, is one token: a small model reads prompts of some hundred tokens instead of some
hundred more.

Not here: the conversations (`new_model.py`), messages to tokens (`renderers`, by way of
`katgym.policies.rendering.renderer_choice`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from katgym.errors import UsageError

PAD, END = "<|endoftext|>", "<|im_end|>"
CONTROL_TOKENS = (PAD, "<|im_start|>", END)
CHAT_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
MIN_LINE = 16
"""Characters of a line that is one token."""
LINE_SHARE = 0.5
"""Of an environment's conversations hold such a line."""

_TURN_END = re.compile(rf"\n|{re.escape(END)}")
# A word; a digit; signs, blanks among them, and the line breaks behind them. So a word is the same
# tokens wherever it stands: in a list, in a sentence, in the quotes of a call.
_PIECE = r"[\p{L}_]+|\p{N}|[^\p{L}\p{N}_\r\n]+[\r\n]*|[\r\n]+"


def num_fixed_tokens() -> int:
    """Return how many tokens every vocabulary has: the bytes, control and chat tokens."""
    return len(pre_tokenizers.ByteLevel.alphabet()) + len(CONTROL_TOKENS) + len(CHAT_TOKENS)


def plain_tokenizer() -> Any:
    """Return a tokenizer that renders chats and merges nothing."""
    return _wrap(_backend(), ())


def train_tokenizer(texts: Sequence[str], lines: Iterable[str] = (), *, vocab_size: int) -> Any:
    """Return a tokenizer whose merges are learned from texts.

    texts: rendered conversations.
    lines: become one token each, see `common_lines`.
    vocab_size: most tokens in all; fewer if the texts have no more to merge.

    Raises `UsageError` for a vocabulary without room for a merge.
    """
    chosen = sorted(set(lines), key=lambda line: (-len(line), line))
    num_taken = num_fixed_tokens() + len(chosen)
    if vocab_size <= num_taken:
        raise UsageError(
            f"vocab_size is more than {num_taken} ({num_fixed_tokens()} bytes and control tokens,"
            f" {len(chosen)} lines), got {vocab_size!r}"
        )
    backend = _backend()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - num_taken + len(pre_tokenizers.ByteLevel.alphabet()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # What is left of the texts between the tokens that are there already.
    known = (*CONTROL_TOKENS, *CHAT_TOKENS, *chosen)
    pattern = re.compile("|".join(map(re.escape, known)))
    pieces = (piece for text in texts for piece in pattern.split(text) if piece)
    backend.train_from_iterator(pieces, trainer)
    return _wrap(backend, chosen)


def common_lines(conversations: Iterable[str]) -> list[str]:
    """Return the lines that `LINE_SHARE` of some conversations hold.

    conversations: of one environment, each what a policy reads.

    A line with digits stays as it is, so that its numbers can be read, unless it is JSON.
    """
    counts: Counter[str] = Counter()
    num_conversations = 0
    for text in conversations:
        counts.update(set(filter(_is_fixed, _TURN_END.split(text))))
        num_conversations += 1
    least = max(2.0, LINE_SHARE * num_conversations)
    return sorted(line for line, count in counts.items() if count >= least)


def _is_fixed(line: str) -> bool:
    has_digit = any(character.isdigit() for character in line)
    # The blank keeps a decoder from taking the line for the letters that stand for bytes.
    is_long = len(line.strip()) >= MIN_LINE and " " in line and line == line.strip()
    is_free = not any(token in line for token in (*CONTROL_TOKENS, *CHAT_TOKENS))
    return is_long and is_free and (not has_digit or line.startswith("{"))


def _backend() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _wrap(backend: Tokenizer, lines: Sequence[str]) -> Any:
    """Return a tokenizer of transformers with the control tokens and the chat format."""
    backend.add_special_tokens(list(CONTROL_TOKENS))
    backend.add_tokens([AddedToken(token, normalized=False) for token in (*CHAT_TOKENS, *lines)])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers is untyped
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = Path(__file__).with_name("qwen3_chat.jinja").read_text("utf-8")
    return tokenizer
