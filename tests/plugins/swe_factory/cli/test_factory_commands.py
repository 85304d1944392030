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


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_has_an_example(name: str, capsys: Capture) -> None:
    assert swe(name, "--help") == 0
    assert f"  katgym swe {name}" in capsys.readouterr().out


def test_the_env_names_every_subcommand_that_the_factory_has() -> None:
    assert set(FACTORY_SUBCOMMANDS) == set(SUBCOMMANDS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("make", "--package", "x==1", "--out", "o", "--tasks", "0"), "at least 1"),
        (
            ("make", "--package", "parcelkit", "--out", "o", "--set", "splits.parcelkit=tst"),
            "split of 'parcelkit': unknown split 'tst'. Did you mean 'test'?",
        ),
        (("check", "toy", "--id", "none"), "unknown task"),
    ],
)
def test_wrong_use_is_exit_code_2_with_what_is_wrong(
    arguments: tuple[str, ...], words: str, capsys: Capture
) -> None:
    assert swe(*arguments) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


@pytest.mark.slow
def test_check_names_the_sound_ones(capsys: Capture) -> None:
    assert swe("check", "toy", "--id", TASK) == 0
    assert "1 of 1 tasks are sound" in capsys.readouterr().err
