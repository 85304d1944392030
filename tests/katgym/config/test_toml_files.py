"""Files with settings from a command line: what is replaced, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from katgym.config.toml_files import kept_text, read_toml
from katgym.errors import UsageError

TEXT = '[train]\nlearning_rate = 1.0\n\n[[envs]]\nid = "a"\n\n[[envs]]\nid = "b"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run.toml"
    found.write_text(TEXT)
    return found


@pytest.mark.parametrize(
    ("setting", "section", "wanted"),
    [
        ("train.learning_rate=3e-4", "train", {"learning_rate": 3e-4}),
        ("train.seed = 1", "train", {"learning_rate": 1.0, "seed": 1}),
        ("train.schedule=cosine", "train", {"learning_rate": 1.0, "schedule": "cosine"}),
        ('train.schedule="a=b"', "train", {"learning_rate": 1.0, "schedule": "a=b"}),
        ("train.loss={clip = 0.3}", "train", {"learning_rate": 1.0, "loss": {"clip": 0.3}}),
        ("train.loss.clip=0.3", "train", {"learning_rate": 1.0, "loss": {"clip": 0.3}}),
        ("evaluate.should_keep_best=false", "evaluate", {"should_keep_best": False}),
        ("envs.1.weight=2.0", "envs", [{"id": "a"}, {"id": "b", "weight": 2.0}]),
        ('envs.0={id = "c"}', "envs", [{"id": "c"}, {"id": "b"}]),
    ],
)  # fmt: skip
def test_a_setting_takes_the_place_of_the_files(
    path: Path, setting: str, section: str, wanted: object
) -> None:
    found = read_toml(path, [setting])
    assert found[section] == wanted
    others = {key: value for key, value in read_toml(path).items() if key != section}
    assert {key: value for key, value in found.items() if key != section} == others


def test_the_last_of_several_settings_counts(path: Path) -> None:
    assert read_toml(path, ["train.seed=1", "train.seed=2"])["train"]["seed"] == 2


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.seed", r"KEY=VALUE, such as train.learning_rate=3e-4; got 'train.seed'"),
        ("=1", r"a setting is KEY=VALUE"),
        ("train..seed=1", r"a setting is KEY=VALUE"),
        ("envs.2.weight=1", r"--set envs.2.weight=1: an array of 2 is there, from 0; got '2'"),
        ("envs.id=1", r"an array of 2 is there, from 0; got 'id'"),
        ("train.learning_rate.high=1", r"before 'learning_rate' comes a table, not 1.0"),
    ],
)  # fmt: skip
def test_settings_that_fit_nowhere_are_refused(path: Path, setting: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_toml(path, [setting])


def test_the_kept_text_tells_the_settings(path: Path) -> None:
    assert kept_text(path) == TEXT
    assert kept_text(path, ["train.seed=1", "a=b"]) == (
        TEXT + "\n# --set train.seed=1\n# --set a=b\n"
    )
