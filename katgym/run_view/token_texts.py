"""The text of token ids, if the run's tokenizer is on this machine.

It needs the package `tokenizers` (a part of transformers) and a model's folder with a
`tokenizer.json`; without them pages show ids. Nothing is downloaded. Not here: how text is shown
(`assets/tokens.js`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.system.cache_folder import cache_folder

FILE = "tokenizer.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_CANDIDATES = 200


class TokenTexts:
    """Texts of a `tokenizer.json`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """Return the text; special tokens have theirs, ids beyond the vocabulary none."""
        if token_id not in self._known:
            self._known[token_id] = self._decode(token_id)
        return self._known[token_id]

    def joined(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens in a row; each by itself where none is part of a character."""
        alone = [self.text(token_id) for token_id in token_ids]
        if not any(REPLACEMENT in text for text in alone):
            return "".join(alone)
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _decode(self, token_id: int) -> str:
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return ""
        decoded = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if piece.startswith("\N{LOWER ONE EIGHTH BLOCK}") and not decoded.startswith(" "):
            return f" {decoded}"  # SentencePiece: decoding alone drops the space in front
        return str(decoded)


def split_characters(texts: TokenTexts, token_ids: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Yield (place, number of tokens, text) of runs of tokens that are parts of characters."""
    begin = 0
    while begin < len(token_ids):
        end = begin
        while end < len(token_ids) and REPLACEMENT in texts.text(token_ids[end]):
            end += 1
        if end > begin + 1:
            yield begin, end - begin, texts.joined(token_ids[begin:end])
        begin = max(end, begin + 1)


def find_token_texts(
    run: Path, lock: Mapping[str, Any], folder: Path | None = None
) -> tuple[TokenTexts | None, str]:
    """Return the texts, or None and a sentence that says why there are none.

    The tokenizer is `folder`'s, else that of a path in the lock, else that of `run`/model. Raises
    `UsageError` for a `folder` without a tokenizer.
    """
    if folder is not None and not (folder / FILE).is_file():
        raise UsageError(f"{str(folder)!r} holds no {FILE}; --tokenizer names a model's folder")
    places = [folder] if folder is not None else [*_folders(lock), run / "model"]
    found = next((place for place in places if (place / FILE).is_file()), None)
    if found is None:
        return None, (
            f"Tokens are shown as ids: no folder that the run names holds a {FILE}. Name the"
            " model's folder with --tokenizer to see their text."
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None, (
            "Tokens are shown as ids: their text needs the package 'tokenizers'. Install: pip"
            " install tokenizers"
        )
    try:
        return TokenTexts(Tokenizer.from_file(str(found / FILE))), ""
    except Exception as e:  # the package raises Exception itself for a file it cannot read
        return None, f"Tokens are shown as ids: {str(found / FILE)!r} cannot be read: {e}"


def _folders(lock: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the folders that a lock's texts name, such as `hf:/models/qwen`."""
    for number, text in enumerate(_texts(lock)):
        if number >= _MAX_CANDIDATES:
            return
        if text.startswith(("smollm2", "hf:smollm2")):
            yield from _cached_models("smollm2-135m-instruct-*")
        path = Path(text.partition(":")[2] if text.startswith(("hf:", "file:")) else text)
        try:
            if path.is_dir():
                yield path
        except (OSError, ValueError):  # too long for a path, or with a NUL
            continue


def _cached_models(pattern: str) -> Iterator[Path]:
    """Yield where policies with weights of their own have unpacked them (`policies/smollm2.py`)."""
    yield from sorted((cache_folder() / "models").glob(pattern))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value that might be paths; tasks and tools are not looked into."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            if name not in ("tasks", "tools", "command"):
                yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
