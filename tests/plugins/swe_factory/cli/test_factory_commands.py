"""Subcommands that the factory adds to `katgym swe`."""

from __future__ import annotations

import pytest

from katgym.cli.main import main
from katgym_envs.swe.cli.swe_command import FACTORY_SUBCOMMANDS
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_swe_factory.plugin import SUBCOMMANDS

Capture = pytest.CaptureFixture[str]
TASK = open_source("toy").tasks()[0].instance_id


def swe(*arguments: str) -> int:
    return main(["swe", *arguments])


def test_the_env_names_every_subcommand_and_each_has_an_example(capsys: Capture) -> None:
    assert set(FACTORY_SUBCOMMANDS) == set(SUBCOMMANDS)
    for name in SUBCOMMANDS:
        assert swe(name, "--help") == 0
        assert f"  katgym swe {name}" in capsys.readouterr().out


def test_wrong_use_is_exit_code_2_with_what_is_wrong(
    capsys: Capture, subtests: pytest.Subtests
) -> None:
    parcelkit = ("make", "--package", "parcelkit", "--out", "o")
    for words, arguments in {
        "at least 1": ("make", "--package", "x==1", "--out", "o", "--tasks", "0"),
        "split of 'parcelkit': unknown split 'tst'. Did you mean 'test'?":
            (*parcelkit, "--set", "splits.parcelkit=tst"),
        "unknown task": ("check", "toy", "--id", "none"),
    }.items():  # fmt: skip
        with subtests.test(words):
            assert swe(*arguments) == 2
            said = capsys.readouterr().err
            assert words in said and "Traceback" not in said


@pytest.mark.slow
def test_check_names_the_sound_ones(capsys: Capture) -> None:
    assert swe("check", "toy", "--id", TASK) == 0
    assert "1 of 1 tasks are sound" in capsys.readouterr().err
