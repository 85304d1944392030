"""Curves: their smoothing by hand, which files are drawn, and what they show."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="needs the package 'matplotlib'")

from matplotlib import _pylab_helpers
from matplotlib.image import imread

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_trainer.runs.plots import CURVES, plot_run, plot_runs, smooth


def write(folder: Path, lines: list[dict[str, float | None]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_smoothing_by_hand() -> None:
    found = smooth(np.array([1.0, 3.0, 8.0]), 2.0)  # weights 1/2 for each step away
    assert found.tolist() == pytest.approx(
        [(1 + 1.5 + 2) / 1.75, (0.5 + 3 + 4) / 2, (0.25 + 1.5 + 8) / 1.75]
    )
    assert smooth(np.array([1.0, 3.0]), 1.0).tolist() == [1.0, 3.0]
    assert smooth(np.array([]), 3.0).tolist() == []
    with pytest.raises(ValueError, match=r"span is a number >= 1, got 0.5"):
        smooth(np.array([1.0]), 0.5)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.floats(1, 50))
def test_smoothing_is_the_weighted_mean_it_says(values: list[float], span: float) -> None:
    decay = 1 - 1 / span
    weights = [[decay ** abs(t - u) for u in range(len(values))] for t in range(len(values))]
    wanted = [math.fsum(w * x for w, x in zip(row, values, strict=True)) / math.fsum(row)
              for row in weights]  # fmt: skip
    assert smooth(np.array(values), span).tolist() == pytest.approx(wanted, abs=1e-9)


def test_a_file_for_each_metric_that_is_there(tmp_path: Path) -> None:
    lines = [
        {"step": t, "train/loss": 3 / t, "train/learning_rate": 1e-5, "rollout/reward": None}
        for t in range(1, 64)
    ]
    paths = plot_run(write(tmp_path / "run", lines))
    assert [path.name for path in paths] == ["loss.png", "learning_rate.png", "overview.png"]
    image = imread(paths[0])
    assert image.shape[0] > 400 and image.shape[1] > 800
    blue = (image[..., 2] - image[..., 0]) > 0.3  # the curve falls from left to right
    rows, columns = np.nonzero(blue[:, : int(0.9 * image.shape[1])])
    third = np.ptp(columns) / 3 + columns.min()
    assert rows[columns < third].min() < rows[columns > 2 * third].min()
    assert _pylab_helpers.Gcf.get_all_fig_managers() == []  # no global figure is left


@pytest.mark.slow
def test_runs_of_any_length_are_drawn(tmp_path: Path) -> None:
    for num in (1, 2, 39, 40):
        lines = [{"step": t, **{c.metric: 0.5 for c in CURVES.values()}} for t in range(1, num + 1)]
        names = [path.name for path in plot_run(write(tmp_path / str(num), lines))]
        assert names == [*(f"{name}.png" for name in CURVES), "overview.png"]


def test_folders_without_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no metrics.jsonl, so it is no training run"):
        plot_run(tmp_path)
    with pytest.raises(UsageError, match=r"metrics.jsonl' holds none of train/loss, rollout/rew"):
        plot_run(write(tmp_path / "run", [{"step": 1, "train/loss": None}]))


def test_groups_of_runs_share_a_picture(tmp_path: Path) -> None:
    runs = {
        name: write(tmp_path / name, [{"step": t, "train/loss": a * t} for t in range(1, 9)])
        for name, a in (("low-0", 0.0), ("low-1", 0.2), ("high", 1.0))
    }
    groups = {"low": [runs["low-0"], runs["low-1"]], "high": [runs["high"]]}
    paths = plot_runs(groups, tmp_path / "out" / "plots")
    assert [path.name for path in paths] == ["loss.png", "overview.png"]
    image = imread(paths[0])[..., :3]
    blue = image[..., 2] - image[..., 0] > 0.5  # the line of the first group's mean
    orange = image[..., 0] - image[..., 2] > 0.5
    right = int(0.9 * image.shape[1])
    assert np.nonzero(orange[:, right])[0].max() < np.nonzero(blue[:, right])[0].min()
    pale = np.abs(image - (0.84 + 0.16 * np.array([0x2F, 0x6F, 0xDE]) / 255)).max(2) < 0.02
    assert pale[:, right].sum() > pale[:, image.shape[1] // 4].sum() > 0  # the band widens


def test_a_group_is_drawn_where_all_of_its_runs_have_points(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [{"step": 1, "train/loss": 1.0, "train/grad_norm": 1.0}])
    two = write(tmp_path / "two", [{"step": 1, "train/loss": 1.0}])
    paths = plot_runs({"both": [one, two], "one": [one]}, tmp_path / "plots")
    assert [path.name for path in paths] == ["loss.png", "grad_norm.png", "overview.png"]
    three = write(tmp_path / "three", [{"step": 1, "train/grad_norm": 1.0}])
    with pytest.raises(UsageError, match="no group has a curve that all of its runs have"):
        plot_runs({"a": [two, three]}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_runs_that_cannot_be_told_apart_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for told, words in [
        (["=a"], "a run is RUN or LABEL=RUN,RUN; got '=a'"),
        (["a="], "a run is RUN or LABEL=RUN,RUN; got 'a='"),
        (["x/a", "y/a"], "two runs are called 'a'; name them: LABEL=RUN"),
    ]:
        assert main(["train", "plot", *told]) == 2
        assert words in capsys.readouterr().err


def test_the_command_compares_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, [{"step": 1, "train/loss": 1.0}])
    out = tmp_path / "plots"
    command = ["train", "plot", f"{tmp_path}/a", f"b={tmp_path}/b,{tmp_path}/a", "--out", str(out)]
    assert main(command) == 0
    assert {path.name for path in out.iterdir()} == {"loss.png", "overview.png"}
    told = capsys.readouterr().out
    assert told.count("train/loss") == 0 and told.count("loss ") == 3
