"""A real vLLM that cannot start: its own words reach the user.

Not here: servers that start (`tests/katgym/policies/test_vllm_server.py`).
"""

from __future__ import annotations

import json

import pytest

from katgym.cli.main import main

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_serve_shows_the_log_of_a_server_that_fails(tmp_path, capsys, vllm_python):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    log = tmp_path / "server.log"
    command = ["vllm", "serve", str(model), "--port", "0", "--device", "cpu"]
    assert main([*command, "--set", f"log_file={log}", "--python", vllm_python]) == 1
    told = capsys.readouterr().err
    assert "error: vLLM ended with exit code 1 after" in told
    assert "of a type that this version of vLLM does not know" in told
    assert "no_such_type" in told
    assert f"The end of its log ({log})" in told
