"""The bytes of tokens, in tokenizers of bytes and of pieces."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'hf'")

from byte_tokenizer import byte_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from katgym.policies.rendering.cached_tokenizer import CachedTokenizer
from katgym.policies.rendering.token_bytes import TokenBytes, text_offsets


def piece_tokenizer(decoder: Any) -> Any:
    """Return a tokenizer of SentencePiece's kind: pieces with blanks, and single bytes."""
    pieces = ["<s>", "\u2581once", "\u2581", "a", "\u00e4", *(f"<0x{i:02X}>" for i in range(256))]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


REPLACE, FALLBACK = decoders.Replace("\u2581", " "), decoders.ByteFallback()
STRIP = decoders.Strip(" ", 1, 0)  # as Llama 2 has it: the first blank of a text is none


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([REPLACE, FALLBACK, decoders.Fuse(), STRIP]),
        decoders.Sequence([REPLACE, FALLBACK, decoders.Fuse()]),
        decoders.Sequence([FALLBACK, decoders.Metaspace()]),
    ],
    ids=["llama", "gemma", "metaspace"],
)
def test_the_bytes_of_pieces_are_their_own(decoder: Any) -> None:
    tokenizer = piece_tokenizer(decoder)
    token_bytes = TokenBytes(tokenizer)
    smile = [f"<0x{byte:02X}>" for byte in "\U0001f600".encode()]
    ids = tokenizer.convert_tokens_to_ids(["<s>", "\u2581once", "\u2581", "\u00e4", *smile, "a"])
    told = [token_bytes.of(i) for i in ids]
    smile_bytes = [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert told == [b"<s>", b" once", b" ", b"\xc3\xa4", *smile_bytes, b"a"]
    assert b"".join(told[1:]).decode().lstrip() == tokenizer.decode(ids[1:]).lstrip()
    assert text_offsets(told[1:]) == [0, 5, 6, 7, 7, 7, 7, 8]


def test_the_bytes_of_every_token_of_bytes_are_what_it_decodes_to() -> None:
    tokenizer = byte_tokenizer(["<think>", "\u00e4 \U0001f600"])
    token_bytes = TokenBytes(CachedTokenizer(tokenizer))
    told = {i: token_bytes.of(i) for i in range(len(tokenizer))}
    single = [own for own in told.values() if len(own) == 1]
    assert sorted(single) == [bytes([byte]) for byte in range(256)]
    for text in ("once \u00e4 \U0001f600\n\x00", "<think>\u00e4 \U0001f600<|im_end|>"):
        ids = tokenizer.encode(text)
        assert b"".join(told[i] for i in ids).decode() == text


def test_offsets_of_bytes_that_are_no_text_stay_within_it() -> None:
    assert text_offsets([]) == []
    assert text_offsets([b"\x80", b"\xff", b"", b"a", b"\xe4b"]) == [0, 0, 1, 1, 2]
