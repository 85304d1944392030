"""`[cluster] rollout_workers`: a run whose groups are played by workers on a Ray cluster.

The server is that of `hf_server.py`. Not here: the workers alone (`tests/katgym/cluster`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from held_run import hold, let_go
from hf_server import HfServer
from hf_server_process import python_for
from rl_play import config_text, metrics, wait_for_steps
from waiting import wait_until

from katgym.cli.main import main
from katgym.rollout_store import RolloutStore

LIMIT_S = 900.0
"""Of a run: it starts Ray and several Pythons with torch."""
HOOKS = """
import pluggy

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("rlworkers/Low-v0", "rl_play:LowEnv", description="Digits.")
"""


def write(
    folder: Path, model: Path, url: str, *, steps: int, staleness: int, cluster: str = "local"
) -> Path:
    """Write the run's file, and a plugin that workers find."""
    (folder / "kp_rlworkers.py").write_text(HOOKS)
    info = folder / "katgym_plugin_rlworkers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: katgym-plugin-rlworkers\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[katgym]\nrlworkers = kp_rlworkers\n")
    text = config_text(model, steps=steps, rollouts=f"max_staleness = {staleness}")
    text = text.replace("rltest/Low-v0", "rlworkers/Low-v0").replace(
        "max_context_tokens = 400\n", f'max_context_tokens = 400\nuri = "vllm:{url}#tiny"\n'
    )
    if cluster:
        text += f'\n[cluster]\naddress = "{cluster}"\nrollout_workers = 2\n'
    path = folder / "rl.toml"
    path.write_text(text)
    return path


def start(config: Path, *more: str, module: str = "katgym") -> subprocess.Popen[str]:
    path = os.pathsep.join([str(config.parent), *sys.path])
    command = [sys.executable, "-m", module, "train", "rl", str(config)]
    return subprocess.Popen(
        [*command, "--out", str(config.parent / "run"), *more],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers(folder: Path) -> list[int]:
    """Return the processes of rollout workers that see a folder."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            is_worker = (place / "cmdline").read_bytes().startswith(b"ray::RolloutActor")
            if is_worker and str(folder).encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def servers(model: Path) -> list[int]:
    """Return the processes of servers that a run has started on a model."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_text().split("\0")
            is_server = any(word.endswith("hf_server_process.py") for word in words)
            if is_server and str(model) in words:
                found.append(int(place.name))
    return found


def check_kept(run: Path, *, steps: int) -> None:
    """Every step trained on whole groups, and no group was trained on twice."""
    with RolloutStore.open(run / "rollouts", create=False) as store:
        records = [r for r in store.sessions() if not r.metadata.get("is_held_out")]
    sizes = Counter((r.metadata["step"], r.metadata["draw"]["number"]) for r in records)
    assert set(sizes.values()) == {4}
    assert Counter(step for step, _ in sizes) == dict.fromkeys(range(1, steps + 1), 4)
    assert len({number for _, number in sizes}) == len(sizes)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("staleness", [0, 1])
def test_workers_play_what_is_trained_on_with_the_newest_weights(
    model: Path, tmp_path: Path, staleness: int, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = "\n[evaluate]\nevery_steps = 3\nnum_tasks = 5\n"
    with HfServer(model) as server:
        config = write(tmp_path, model, server.url, steps=3, staleness=staleness)
        config.write_text(config.read_text() + evaluate)
        process = start(config)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
    assert "placing rollout workers" in output
    found = metrics(tmp_path / "run")
    assert len(found) == 3
    assert max(line["rollout/max_staleness"] for line in found) <= staleness
    assert all(line["rollout/num_invalid"] == 0 for line in found)
    check_kept(tmp_path / "run", steps=3)
    wait_until(lambda: not workers(tmp_path), "the workers' end")
    told = json.loads((tmp_path / "run/cluster.json").read_text())
    # With staleness groups of a step that does not come are given up at the end.
    assert sum(worker["num_calls"] for worker in told["workers"]) >= 12 + 2 * 5
    evaluated = (tmp_path / "run/eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["num_rollouts"] for line in evaluated] == [5, 5]
    assert main(["cluster", "status", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "the run has ended" in shown and "rollout worker 1 (process" in shown
    assert f"{server.url}  yes         3" in shown
    assert main(["cluster", "status", str(tmp_path)]) == 2
    assert "has no section [cluster]" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.cluster
def test_killed_workers_and_a_killed_run_train_on_nothing_twice(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with HfServer(model) as server:
        config = write(tmp_path, model, server.url, steps=5, staleness=1)
        config.write_text(config.read_text() + hold(tmp_path, 1, 2, 3))
        process = start(config)
        # 1. Workers are killed in the middle of the run, one after another.
        killed: set[int] = set()
        for step in (1, 2):
            wait_for_steps(run, step, process, limit_s=LIMIT_S)
            others = wait_until(lambda: set(workers(tmp_path)) - killed, "another worker")
            pid = min(others)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            let_go(tmp_path, step)
        # 2. The run is killed, and goes on where it was.
        wait_for_steps(run, 3, process, limit_s=LIMIT_S)
        process.kill()
        process.communicate()
        let_go(tmp_path, 3)
        process = start(config)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
    assert [line["step"] for line in metrics(run)] == list(range(1, 6))
    check_kept(run, steps=5)


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_go_on_when_servers_of_the_runs_own_are_killed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that the run has started, and one that Ray has."""
    run = tmp_path / "run"
    config = write(tmp_path, model, "http://127.0.0.1:9", steps=4, staleness=1)
    own = f'uri = "vllm"\nserver_python = "{python_for(tmp_path)}"'
    text = config.read_text().replace('uri = "vllm:http://127.0.0.1:9#tiny"', own)
    text = text.replace(
        "[rollouts]", "[[policy.servers]]\n[[policy.servers]]\ngpus = 0\n\n[rollouts]"
    )
    text = text.replace("rollout_workers = 2", "rollout_workers = 1")
    config.write_text(text + hold(tmp_path, 1))
    process = start(config)
    wait_for_steps(run, 1, process, limit_s=LIMIT_S)
    killed = servers(model)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # it ends with the one before it
            os.kill(pid, signal.SIGKILL)
    let_go(tmp_path, 1)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert len(killed) == 2
    assert metrics(run)[-1]["sync/num_restarts"] == 2
    assert main(["cluster", "status", str(run)]) == 0
    shown = capsys.readouterr().out
    assert " on here " in shown and "(node " in shown
    told = json.loads((run / "cluster.json").read_text())
    assert all(server["end"].startswith("vLLM was killed") for server in told["servers"])
    assert all(line["rollout/num_invalid"] == 0 for line in metrics(run))
    assert max(line["rollout/max_staleness"] for line in metrics(run)) <= 1
    check_kept(run, steps=4)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_without_workers_plays_on_servers_that_ray_has_placed(
    model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, model, "http://127.0.0.1:9", steps=1, staleness=0)
    own = f'uri = "vllm"\nserver_python = "{python_for(tmp_path)}"'
    text = config.read_text().replace('uri = "vllm:http://127.0.0.1:9#tiny"', own)
    text = text.replace("[rollouts]", "[[policy.servers]]\ngpus = 0\n\n[rollouts]")
    config.write_text(text.replace("rollout_workers = 2", "rollout_workers = 0"))
    process = start(config)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert "placing" not in output
    check_kept(tmp_path / "run", steps=1)
    told = json.loads((tmp_path / "run/cluster.json").read_text())
    assert told["workers"] == [] and "(node " in told["servers"][0]["place"]
    wait_until(lambda: not servers(model), "the servers' end")


@pytest.mark.slow
def test_without_a_cluster_nothing_of_ray_is_imported(model: Path, tmp_path: Path) -> None:
    source = (
        "import sys\nfrom katgym.cli.main import main\ncode = main(sys.argv[1:])\n"
        "assert 'ray' not in sys.modules, 'ray was imported'\nsys.exit(code)\n"
    )
    (tmp_path / "driver.py").write_text(source)
    with HfServer(model) as server:
        write(tmp_path, model, server.url, steps=1, staleness=0, cluster="")
        process = start(tmp_path / "rl.toml", module="driver")
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output


GANG = """
[cluster]
address = "local"
trainer_ranks = 2
gpus_per_rank = 0
"""


@pytest.mark.slow  # 25 s: six Pythons with torch
@pytest.mark.cluster
def test_a_server_on_the_trainers_devices_sleeps_while_a_gang_of_ranks_trains(
    model: Path, tmp_path: Path
) -> None:
    config, own = write(tmp_path, model, "", steps=2, staleness=0, cluster=""), python_for(tmp_path)
    tags = f'server_python = "{own}"\n[[policy.servers]]\ntags = ["rollout", "train"]\n'
    text = config.read_text().replace('uri = "vllm:#tiny"\n', f'uri = "vllm"\n{tags}')
    config.write_text(text + GANG)
    process = start(config)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    found = metrics(tmp_path / "run")
    assert [line["time/asleep_s"] > 0 for line in found] == [True, True]
    assert all(line["sync/difference"] <= 1e-4 for line in found)
    assert all(line["rollout/num_invalid"] == 0 for line in found)
    check_kept(tmp_path / "run", steps=2)
    wait_until(lambda: not servers(model), "the servers' end")
