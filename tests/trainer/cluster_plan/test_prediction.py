"""`katgym cluster plan` as a user meets it, and what it reads of a file.

Not here: simulated time (`test_simulation.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from katgym.cli.main import main

CONFIG = """
[model]
path = "{model}"
[[envs]]
id = "katgym/TreasureHunt-v1"
[policy]
uri = "vllm"
max_tokens = 2048
max_context_tokens = 16384
[[policy.servers]]
devices = "0,1"
[[policy.servers]]
devices = "2,3"
tags = {tags}
[rollouts]
num_groups = 2
group_size = 4
max_staleness = {staleness}
{rollouts}
[train]
max_tokens = 16384
"""
DENSE = {
    "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
}  # fmt: skip
TAIL = ["--set", "steps=6", "--set", "turns=4"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(DENSE))
    return write(tmp_path)


def write(folder: Path, **given: Any) -> Path:
    told = {"tags": '["rollout"]', "staleness": 1, "rollouts": "", **given}
    path = folder / "rl.toml"
    path.write_text(CONFIG.format(model=folder / "model", **told))
    return path


def plan(config: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> Any:
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["cluster", "plan", str(config), *TAIL, *given, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_table_says_who_is_busy_what_holds_the_run_up_and_what_it_costs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "plan", str(config), *TAIL, "--set", "env_s=60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "placement   disaggregated, 5 GPUs, 1 nodes"
    assert [line.split(" ")[0] for line in lines[1:9]] == [
        "a", "an", "trainers", "samplers", "GPUs", "processes", "tokens", "bottleneck",
    ]  # fmt: skip
    assert lines[8].startswith("bottleneck  envs: twice as fast, they bring ")


def test_tags_are_the_placement(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placements = {
        ('["rollout"]', ()): ("disaggregated", 5),
        ('["rollout"]', ("train_gpus=4",)): ("disaggregated", 8),
        ('["rollout", "train"]', ()): ("multiplexed", 4),
        ('["rollout", "train"]', ("copies=2",)): ("multiplexed", 8),
    }
    found = {}
    for tags, settings in placements:
        told = plan(write(config.parent, tags=tags), capsys, *settings)["prediction"]
        found[tags, settings] = told["placement"], told["gpus"]
    assert found == placements


def test_what_is_slow_is_the_first_bottleneck(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {
        ("env_s=120", "grade_s=300"): "envs",
        ("sampler_speed=0.01",): "samplers",
        ("trainer_speed=0.001",): "trainers",
        ("rows_token_s=0.01",): "packing",
        ("store_turn_s=30",): "store writer",
        ("loop_turn_s=20",): "agent loop",
        ("write_rate=1e6",): "weight sync",
    }
    first = {settings: plan(config, capsys, *settings)["parts"][0] for settings in slow}
    assert {settings: part["name"] for settings, part in first.items()} == slow
    assert all(part["gain"] > 0.3 for part in first.values())


def test_a_store_s_groups_come_through_the_gateway(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text().replace('[[envs]]\nid = "katgym/TreasureHunt-v1"\n', "")
    config.write_text(text.replace("[rollouts]", '[rollouts]\nstore = "rollouts"'))
    found = plan(config, capsys, "gateway_call_s=20")
    assert found["parts"][0]["name"] == "gateway"
    assert found["prediction"]["gateway"] > 0.8


def test_rollout_workers_share_the_agent_loop(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = plan(config, capsys, "loop_turn_s=5")["prediction"]
    workers = ("loop_turn_s=5", "cluster.rollout_workers=4")
    four = plan(config, capsys, *workers)
    assert four["prediction"]["steps_per_hour"] > 1.5 * one["steps_per_hour"]
    assert plan(config, capsys, *workers, "loops=1")["prediction"] == one


def test_changes_are_keys_that_help(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(config, capsys, "rollouts.max_concurrency=2", "rollouts.max_staleness=2")
    assert found["changes"][0]["name"] == "max_concurrency = 4"
    assert found["changes"][0]["gain"] > 0.3


def test_many_gpus_are_simulated_in_parts(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = plan(config, capsys, "rollouts.max_concurrency=64")
    large = plan(config, capsys, "copies=64", "rollouts.num_groups=128", "simulated_gpus=5",
                 "rollouts.max_concurrency=4096", "rows_token_s=0", "pack_token_s=0",
                 "store_turn_s=0")  # fmt: skip
    assert large["prediction"]["gpus"] == 64 * small["prediction"]["gpus"]
    assert large["prediction"]["step_s"] == pytest.approx(small["prediction"]["step_s"], rel=0.02)
    assert large["nodes"] == 40


def test_every_assumption_has_unit_source_and_meaning(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = plan(config, capsys, "gpu_hour=4")["assumptions"]
    assert told["gpu_hour"]["value"] == 4
    assert told["store_turn_s"]["about"].startswith("s, benchmarks/rollout_store.csv: ")
    for name, each in told.items():
        unit, comma, rest = each["about"].partition(", ")
        source, colon, _ = rest.partition(":")
        assert unit and comma and source and colon, name
        if source.endswith(".csv"):
            assert (Path(__file__).parents[3] / source).is_file()
    assert len(told) > 40


def test_what_is_wrong_is_said(
    config: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for setting, error in (
        ("env_seconds=3", "unknown key of assumptions 'env_seconds'. Did you mean 'env_s'?"),
        ("turns=0", "turns is a number > 0, got 0"),
        ("copies=half", "assumptions copies"),
        ("rollouts.num_group=3", "Did you mean 'num_groups'?"),
        ("model.path=Qwen/Qwen3-32B", "does not tell the model's shape"),
        ("train_gpus=-1", "train_gpus is an int >= 0, got -1"),
    ):
        with subtests.test(setting):
            assert main(["cluster", "plan", str(config), "--set", setting]) == 2
            assert error in " ".join(capsys.readouterr().err.split())
    config.write_text('[[stage]]\nkind = "rl"\n')
    assert main(["cluster", "plan", str(config)]) == 2
    assert "has stages" in capsys.readouterr().err


def test_a_model_that_is_not_here_is_told_by_its_size(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(config, capsys, "model.path=Qwen/Qwen3-32B", "weights=32e9")
    assert found["prediction"]["step_s"] > plan(config, capsys)["prediction"]["step_s"]


@pytest.mark.slow
def test_nothing_of_ray_vllm_or_transformers_is_imported(config: Path) -> None:
    code = (
        "import sys; from katgym.cli.main import main;"
        f" main(['cluster', 'plan', {str(config)!r}, '--set', 'steps=3', '--set', 'turns=2']);"
        " print(sorted({'ray', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
