"""Proofs of committed data, run when the data or what makes it has changed.

    def test_the_file_is_what_the_generator_makes():
        prove("puzzles", [FILE, GENERATOR], compare)

`data_proofs.json` beside this module holds the sha256 at which each subject was last proven. Files
with that sha256 are proven. Others are proven again, which may take minutes, and the test fails
until the new sha256 is committed: run it with `KATGYM_RECORD_PROOFS=1` to write it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

LEDGER = Path(__file__).with_name("data_proofs.json")


def prove(
    subject: str, files: Sequence[Path], proof: Callable[[], None], *, ledger: Path = LEDGER
) -> None:
    """Run `proof`, which asserts, unless `files` are what it last held for."""
    digest = hash_files(files)
    proven = json.loads(ledger.read_text(encoding="utf-8"))
    if proven.get(subject) == digest:
        return
    proof()
    if "KATGYM_RECORD_PROOFS" in os.environ:
        text = json.dumps({**proven, subject: digest}, indent=2, sort_keys=True)
        ledger.write_text(text + "\n", encoding="utf-8")
        return
    raise AssertionError(
        f"the proof of {subject!r} holds, but not for the committed sha256 {proven.get(subject)!r}:"
        f" run this test with KATGYM_RECORD_PROOFS=1, and commit {ledger.name}"
    )


def hash_files(files: Sequence[Path]) -> str:
    """Return the sha256 over names and bytes of `files`, in this order."""
    assert files
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        digest.update(f"{file.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()
