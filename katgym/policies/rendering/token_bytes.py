"""The bytes that a token stands for, also where they are a part of a character.

Read off how a tokenizer of `tokenizers` decodes: bytes written as letters (GPT-2's table, as Qwen
and Llama 3 have it), or pieces of SentencePiece, whose single bytes are `<0xF0>`.

Not here: texts of whole answers (`answer_parsing.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"
"""What SentencePiece writes for a blank."""


class TokenBytes:
    """Tells the bytes of one tokenizer's ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        self._bytes_of = self._reader()

    def of(self, token_id: int) -> bytes:
        """Return the bytes of an id; those of an added token are its name's."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None or self._bytes_of is None:
            return str(self._tokenizer.decode([token_id])).encode()
        return self._bytes_of(piece)

    def _reader(self) -> Callable[[str], bytes] | None:
        """Return what reads the tokenizer's pieces; None where it decodes in a way of its own."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        if decoder is None:
            return None
        kinds = set(_kinds(json.loads(decoder.__getstate__())))
        if "ByteLevel" in kinds:
            return _read_letters
        return _read_piece if kinds & {"ByteFallback", "Metaspace"} else None


def _kinds(decoder: Any) -> Iterator[str]:
    """Yield the types of a decoder and of those that it is made of."""
    yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)


def _letter_bytes() -> dict[str, int]:
    """Return GPT-2's table: printable bytes are their letters, the others come behind 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_LETTER_BYTES = _letter_bytes()


def _read_letters(piece: str) -> bytes:
    if all(letter in _LETTER_BYTES for letter in piece):
        return bytes(_LETTER_BYTES[letter] for letter in piece)
    return piece.encode()


def _read_piece(piece: str) -> bytes:
    if found := _BYTE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return piece.replace(_BLANK, " ").encode()


def text_offsets(tokens: Sequence[bytes]) -> list[int]:
    """Return how many characters of their common text have begun before each token's own.

    A token within a character has the offset of that character.
    """
    offsets, num = [], 0
    for token in tokens:
        is_within = token[:1] > b"\x7f" and token[0] < 0xC0
        offsets.append(max(num - is_within, 0))
        num += sum(byte & 0xC0 != 0x80 for byte in token)
    return offsets
