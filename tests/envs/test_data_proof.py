"""A proof runs when its files change, and an unrecorded one fails even if it holds."""

import json
from pathlib import Path

import pytest
from data_proof import hash_files, prove


def test_a_proof_runs_when_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, ledger = tmp_path / "data", tmp_path / "proofs.json"
    data.write_bytes(b"1")
    ledger.write_text("{}")
    runs: list[bytes] = []

    def proof() -> None:
        runs.append(data.read_bytes())

    monkeypatch.delenv("KATGYM_RECORD_PROOFS", raising=False)
    with pytest.raises(AssertionError, match=r"the proof of 'data' holds, but not for .* None"):
        prove("data", [data], proof, ledger=ledger)
    monkeypatch.setenv("KATGYM_RECORD_PROOFS", "1")
    prove("data", [data], proof, ledger=ledger)
    prove("data", [data], proof, ledger=ledger)
    data.write_bytes(b"2")
    prove("data", [data], proof, ledger=ledger)

    assert runs == [b"1", b"1", b"2"]
    assert json.loads(ledger.read_text()) == {"data": hash_files([data])}


def test_a_proof_that_fails_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "proofs.json"
    ledger.write_text("{}")
    monkeypatch.setenv("KATGYM_RECORD_PROOFS", "1")

    def proof() -> None:
        raise AssertionError("the data is wrong")

    with pytest.raises(AssertionError, match="the data is wrong"):
        prove("data", [ledger], proof, ledger=ledger)
    assert ledger.read_text() == "{}"
