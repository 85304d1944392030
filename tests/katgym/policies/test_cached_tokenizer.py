"""A tokenizer that remembers encodings gives what the tokenizer gives."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from katgym.policies.rendering.cached_tokenizer import MAX_CHARS, CachedTokenizer


class Bytes:
    """A tokenizer that counts its calls."""

    eos_token_id = 0

    def __init__(self) -> None:
        self.calls: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.calls.append(text)
        return [*text.encode(), *([0] if add_special_tokens else [])]

    def __call__(self, text: Any, **_: Any) -> dict[str, list[Any]]:
        self.calls.append(text)
        return {
            "input_ids": [*text.encode()],
            "offset_mapping": [(i, i + 1) for i in range(len(text))],
        }

    def __len__(self) -> int:
        return 256


def test_the_second_encoding_of_a_text_is_remembered() -> None:
    inner = Bytes()
    tokenizer = CachedTokenizer(inner)
    first = tokenizer.encode("ab", add_special_tokens=False)
    first.append(99)  # what a caller does to its list is its own
    assert tokenizer.encode("ab", add_special_tokens=False) == [97, 98]
    assert inner.calls == ["ab"]


def test_options_tell_encodings_apart() -> None:
    tokenizer = CachedTokenizer(Bytes())
    assert tokenizer.encode("a", add_special_tokens=False) == [97]
    assert tokenizer.encode("a") == [97, 0]


def test_long_texts_are_not_kept() -> None:
    inner = Bytes()
    tokenizer = CachedTokenizer(inner)
    text = "x" * (MAX_CHARS + 1)
    assert tokenizer.encode(text) == tokenizer.encode(text)
    assert len(inner.calls) == 2


def test_calls_are_remembered_too() -> None:
    inner = Bytes()
    tokenizer = CachedTokenizer(inner)
    first = tokenizer("ab", return_offsets_mapping=True)
    first["input_ids"].clear()
    assert tokenizer("ab", return_offsets_mapping=True) == {
        "input_ids": [97, 98], "offset_mapping": [(0, 1), (1, 2)]
    }  # fmt: skip
    assert inner.calls == ["ab"]
    tokenizer("ab", return_tensors="pt")
    tokenizer("ab", kinds=["a list is no key"])
    assert inner.calls == ["ab", "ab", "ab"]


def test_the_rest_is_the_tokenizers_and_copies_work() -> None:
    tokenizer = CachedTokenizer(Bytes())
    assert tokenizer.eos_token_id == 0 and len(tokenizer) == 256
    for other in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert other.encode("a") == [97, 0]
    assert not hasattr(tokenizer, "nothing_like_it")
