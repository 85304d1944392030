"""Packages that are installed without their requirements: found, and imported with stand-ins."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from katgym.errors import MissingDependencyError
from katgym.plugins.upstream import package_folder, stand_ins


def test_a_package_is_found_and_a_missing_one_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_of_test").mkdir()
    (tmp_path / "bench_of_test" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        package_folder("bench_of_test", "bench==1", because="torch") == tmp_path / "bench_of_test"
    )
    with pytest.raises(MissingDependencyError, match=r"--no-deps bench==1 .* it brings torch"):
        package_folder("no_bench_of_test", "bench==1", because="torch")


def test_a_module_sees_stand_ins_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "sdk_of_test/__init__.py": "",
        "sdk_of_test/client.py": "CLIENT = 'true'\n",
        "scorer_of_test.py": "from sdk_of_test.client import CLIENT\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    true = importlib.import_module("sdk_of_test.client")
    with stand_ins({"sdk_of_test": {}, "sdk_of_test.client": {"CLIENT": "stand-in"}}):
        scorer = importlib.import_module("scorer_of_test")
    monkeypatch.delitem(sys.modules, "scorer_of_test")
    assert scorer.CLIENT == "stand-in"
    assert importlib.import_module("sdk_of_test.client") is true
    with pytest.raises(ZeroDivisionError), stand_ins({"sdk_of_test": {}}):
        1 / 0  # noqa: B018 - what an import may raise
    assert sys.modules["sdk_of_test.client"] is true
    del sys.modules["sdk_of_test.client"], sys.modules["sdk_of_test"]
    with stand_ins({"sdk_of_test": {"__path__": [str(tmp_path / "sdk_of_test")]}}):
        assert importlib.import_module("sdk_of_test.client") is not true
    assert not {"sdk_of_test", "sdk_of_test.client"} & sys.modules.keys()
