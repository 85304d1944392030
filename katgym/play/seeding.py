"""Seeds derived from names and numbers, stable across processes and Python versions."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**31) that depends on every part and on their order.

    Parts are told apart by type and length, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        text = f"{type(part).__name__}:{part!r}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest()[:8], "little") % 2**31
