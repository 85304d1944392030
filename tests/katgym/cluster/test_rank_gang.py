"""Gangs that run a short command: places, output, exit codes, starts that come to nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from katgym.cluster.cluster_config import ClusterConfig
from katgym.errors import InfrastructureError, UsageError

HOOKS = """
import os, pluggy, signal, sys

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    pass

place = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK",
         "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
print(place, file=sys.stderr)
if os.environ.get("KATGYM_TEST_DIES", "") == place["RANK"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def telling(plugin_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin whose import tells a rank's place, and ends it where it is told to."""
    plugin_tree.add_module("kp_telling", HOOKS)
    plugin_tree.add_distribution("katgym-plugin-telling", {"telling": "kp_telling"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin_tree.folder), *sys.path]))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_a_gang_is_told_its_places_and_ends_as_its_ranks_do(
    start_cluster: Callable[[int], Any],
    telling: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from katgym.cluster.rank_gang import RankGang

    cluster = start_cluster(2)  # of two processors each
    config = ClusterConfig(
        address=cluster.address, trainer_ranks=3, gpus_per_rank=0, max_rank_restarts=1
    )

    looks: list[str] = []  # at the newest checkpoint, at the first start and after each that failed

    def run(
        *arguments: str, needs: list[Path] | None = None, config: ClusterConfig = config
    ) -> int:
        def find_step() -> int:
            looks.append("")
            return 0

        looks.clear()
        gang = RankGang(config, arguments, folder=tmp_path, needs=needs or [], find_step=find_step)
        return gang.run()

    # 1. Two ranks of one node and one of another; the first one's output is the command's.
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("KATGYM_OPENMP", "")  # it is the caller's own number
    assert run("plugins", "--json") == 0
    out, err = capfd.readouterr()
    assert {"name": "telling"}.items() <= next(
        p for p in json.loads(out) if p["name"] == "telling"
    ).items()
    told = [eval(line[line.index("{") :]) for line in err.splitlines() if "'RANK'" in line]
    told.sort(key=lambda place: str(place["RANK"]))
    assert [place["RANK"] for place in told] == ["0", "1", "2"]
    sizes = [(place["LOCAL_RANK"], place["LOCAL_WORLD_SIZE"]) for place in told]
    assert sizes in ([("0", "2"), ("1", "2"), ("0", "1")], [("0", "1"), ("0", "2"), ("1", "2")])
    assert {place["WORLD_SIZE"] for place in told} == {"3"}
    assert {place["OMP_NUM_THREADS"] for place in told} == {"7"}
    assert {place["CUDA_VISIBLE_DEVICES"] for place in told} == {""}
    assert "rank 1: {'RANK': '1'" in err and "rank 2: {'RANK': '2'" in err

    # 2. Wrong usage is not tried again, nor what a node does not see.
    assert run("plugins", "--jsn") == 2
    assert len(looks) == 1
    with pytest.raises(UsageError, match=r"has no '/nowhere/rl.toml': the run's file and folder"):
        run("plugins", needs=[Path("/nowhere/rl.toml")])

    capfd.readouterr()
    much = ClusterConfig(address=cluster.address, trainer_ranks=3, patience_s=0.5)
    told = (
        r"3 trainer ranks wait for 1 CPU, 1 GPU each, all at once; the cluster has 4 CPU \(\d free"
    )
    with pytest.raises(InfrastructureError, match=f"{told}.*0 GPU.*within 0.5 s: ask for less"):
        run("plugins", config=much)

    # 3. A rank that is killed ends all; they are started again, and not for ever.
    monkeypatch.setenv("KATGYM_TEST_DIES", "1")
    with pytest.raises(InfrastructureError, match=r"rank 1 \(process \d+ on node .*SIGKILL") as e:
        run("plugins", "--json")
    assert "and 1 starts after step 0 brought no new checkpoint" in str(e.value)
    assert len(looks) == 3 and capfd.readouterr().err.count("rank 1: {'RANK': '1'") == 2


def test_keys_that_cannot_be_are_refused() -> None:
    for told, words in (
        ({"trainer_ranks": -1}, "trainer_ranks is >= 0, got -1"),
        ({"trainer_ranks": 2, "gpus_per_rank": 2}, "more GPUs are more trainer_ranks"),
        ({"gpus_per_rank": 0}, "gpus_per_rank changes nothing with trainer_ranks = 0"),
        ({"patience_s": 0}, "patience_s is > 0, got 0"),
        ({"address": "ray://head:1"}, "address 'ray://head:1' is of a Ray client"),
        ({"address": "here"}, "HOST:PORT, 'auto' or 'local', got 'here'"),
    ):
        with pytest.raises(UsageError, match=words):
            ClusterConfig(**told)
