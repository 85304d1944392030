"""A model's name: `smollm2` is unpacked from its package, anything else stays as it is."""

from __future__ import annotations

import subprocess
import sys

from katgym.policies.model_source import model_source


def test_hub_ids_and_folders_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert [model_source(n) for n in ("Qwen/Qwen3-0.6B", "smollm2", ".")] == [
        "Qwen/Qwen3-0.6B", "smollm2", "."
    ]  # fmt: skip


def test_smollm2_is_where_its_package_is_unpacked(tmp_path, monkeypatch):
    from katgym.policies.hf import smollm2

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "model_directory", lambda: tmp_path / "unpacked")
    assert model_source("smollm2") == str(tmp_path / "unpacked")


def test_other_names_load_no_torch():
    code = (
        "import sys; from katgym.policies.model_source import model_source;"
        " model_source('Qwen/Qwen3-0.6B'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
