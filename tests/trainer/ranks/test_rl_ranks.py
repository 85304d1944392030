"""`torchrun -m katgym train rl`: the first rank plays, all train, servers get the weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hf_server import HfServer
from rl_play import config_text, metrics, register_env, save_model
from started_ranks import (
    assert_close,
    assert_equal,
    rank_pids,
    start,
    start_each,
    wait_for_checkpoints,
    weights,
)

from katgym.cli.main import main

NAMES = (
    "rollout/reward", "rollout/completion_tokens", "train/loss", "train/entropy",
    "train/grad_norm", "train/num_trained_tokens",
)  # fmt: skip
LIMIT = 5e-6
SMOOTH = "epsilon = 1e-2"  # Adam's division blows up what sums in another order differ by
SCRIPT = "rl_process.py"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    register_env()
    model = save_model(tmp_path / "tiny")
    file = tmp_path / "rl.toml"
    file.write_text(config_text(model, steps=6, train=SMOOTH))
    return file


@pytest.mark.slow  # 60 s: five Pythons with torch and transformers
def test_a_run_on_ranks_is_that_of_one_process_and_goes_on(config: Path, tmp_path: Path) -> None:
    one, out = tmp_path / "one", tmp_path / "two"
    assert main(["train", "rl", str(config), "--out", str(one)]) == 0

    # A rank is killed in mid run: the first one says which and ends, also when it is told to stop,
    # as torchrun does.
    more = ("--set", "train.num_steps=100000", "--set", "checkpoint.max_checkpoints=999")
    run, other = start_each(2, SCRIPT, "train", "rl", str(config), "--out", str(out), *more)
    wait_for_checkpoints(run, out)
    other.kill()
    other.communicate()
    run.terminate()
    _, told = run.communicate(timeout=600)
    assert run.returncode != 0
    assert "rank 0 of 2: rank 1 died or does not answer within 1800 s" in " ".join(told.split())

    # The same command goes on, from an early checkpoint here; then one process does.
    for path in (out / "checkpoints").iterdir():
        if path.name != "step-000002":
            shutil.rmtree(path)
    run = start(2, "rl", config, out, "--steps", "4", "--json", script=SCRIPT)
    printed, told = run.communicate(timeout=600)
    assert run.returncode == 0, told
    assert [json.loads(printed)[name] for name in ("resumed_from", "step")] == [2, 4]
    shutil.rmtree(out / "model")
    assert main(["train", "rl", str(config), "--out", str(out)]) == 0
    assert_close(out, one, names=NAMES, limit=LIMIT)


@pytest.mark.slow  # 35 s: six Pythons with torch and transformers
def test_steps_after_a_killed_rank_are_bit_for_bit_those_of_an_undisturbed_run(
    config: Path, tmp_path: Path
) -> None:
    out, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    told = ("train", "rl", str(config), "--out")
    run, other = start_each(2, SCRIPT, *told, str(out), "--set", "train.num_steps=100000")
    wait_for_checkpoints(run, out, 1)
    other.kill()
    other.communicate()
    run.communicate(timeout=600)
    num_steps = str(len(metrics(out)) + 3)  # of which two at least are sampled anew
    for folder in (out, undisturbed):
        for rank in start_each(2, SCRIPT, *told, str(folder), "--steps", num_steps):
            _, said = rank.communicate(timeout=600)
            assert rank.returncode == 0, said
    assert_equal(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("train", ["", "lora_rank = 2"])
def test_servers_get_the_weights_of_all_ranks(train: str, config: Path, tmp_path: Path) -> None:
    with HfServer(tmp_path / "tiny") as server:
        policy = f"[policy]\nuri = 'vllm:{server.url}#tiny'\nsync = 'reload'\n"
        text = config_text(tmp_path / "tiny", steps=2, rollouts="max_staleness = 1", train=train)
        config.write_text(text.replace("[policy]\n", policy))
        run = start(2, "rl", config, tmp_path / "run", script=SCRIPT)
        _, told = run.communicate(timeout=600)
        assert run.returncode == 0, told
        assert (server.num_updates, server.version) == (4, "2")  # at the start twice
        served = dict(server.model.named_parameters())
    for line in metrics(tmp_path / "run"):
        assert line["sync/difference"] <= 1e-4
    for name, written in weights(tmp_path / "run" / "model").items():
        assert (served[name] == written).all(), name


@pytest.mark.slow
def test_held_out_tasks_and_ctrl_c_are_the_first_ranks(config: Path, tmp_path: Path) -> None:
    out, evaluate = tmp_path / "run", "[evaluate]\nevery_steps = 2\nnum_tasks = 2"
    config.write_text(config_text(tmp_path / "tiny", steps=5000, more=evaluate))
    # Not by torchrun, which kills who has not ended half a minute after its signal.
    run, other = start_each(2, SCRIPT, "train", "rl", str(config), "--out", str(out))
    wait_for_checkpoints(run, out)
    for rank in (run, other):
        rank.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=600)
    other.communicate(timeout=600)
    assert run.returncode == other.returncode == 130, told
    num = len(metrics(out))
    assert f"stopped after step {num}; go on with" in " ".join(told.split())
    assert (out / "checkpoints" / f"step-{num:06d}").exists()
    run = start(2, "rl", config, out, "--steps", str(num + 1), script=SCRIPT)
    _, told = run.communicate(timeout=600)
    assert run.returncode == 0, told
    best = json.loads((out / "best.json").read_text())["models"][-1]
    kept = out / "best" / f"step-{best['step']:06d}"
    files = [path / "model.safetensors" for path in (out / "model", kept)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow  # 110 s: a minute until it counts as hung, and torchrun waits for half of one
def test_a_rank_that_hangs_ends_the_run_and_is_named(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config.write_text(config.read_text() + "\n[trainer.ranks]\ntimeout_s = 60\n")
    run = start(3, "rl", config, out, "--set", "train.num_steps=100000", script=SCRIPT)
    wait_for_checkpoints(run, out, 1)
    pids = rank_pids(run.pid)
    os.kill(pids["1"], signal.SIGSTOP)
    _, told = run.communicate(timeout=600)
    assert run.returncode != 0
    words = "of 3: rank 1 died or does not answer within 60 s"  # said by both, unless one is slow
    assert words in " ".join(told.split()), told
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
