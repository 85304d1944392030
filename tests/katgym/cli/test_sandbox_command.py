from __future__ import annotations

import json

import pytest

from katgym.cli.main import main


def test_list_says_what_is_enforced_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "list", "local"]) == 0
    told = capsys.readouterr().out
    assert "local: namespaces+overlay" in told and "untrusted code may run" in told
    assert "tmpfs size" in told and "fork" in told


def test_list_as_json_names_every_backend_but_the_remote_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sandbox", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"docker", "local"}
    assert found["local"]["is_safe"] is True
    assert found["local"]["probes"]["seccomp"] == "yes"


def test_gc_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "gc", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["local"] >= 0


def test_an_unknown_backend_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", "locl"]) == 2
    assert "Did you mean 'local'?" in capsys.readouterr().err


@pytest.mark.slow
def test_check_prints_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", "local"]) == 0
    told = capsys.readouterr().out
    assert told.count("passed") > 25 and "failed" not in told
