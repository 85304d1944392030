"""`katgym train rl` as a user meets it: a tiny random model learns, stops, goes on.

Not here: a full disk (`test_full_disk.py`), several processes (`test_rl_cluster.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from held_run import hold, let_go
from rl_play import (
    ENV_ID,
    LowEnv,
    config_text,
    metrics,
    register_env,
    save_model,
    start_run,
    wait_for_steps,
)
from transformers import AutoTokenizer

from katgym.cli.main import main
from katgym.environment.messages import Message
from katgym.errors import UsageError
from katgym.plugins.registry import register
from katgym.rollout_store.rollouts import as_rollout
from katgym.rollout_store.store import RolloutStore
from katgym_trainer import METRICS
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.rl.group_stream import Taken
from katgym_trainer.rl.learning_watch import LearningWatch, RlRunError
from katgym_trainer.rl.rl_metrics import RL_METRICS
from katgym_trainer.rollouts.turn_errors import is_truncated
from katgym_trainer.runs.model_loading import load_frozen


@pytest.fixture(autouse=True)
def _env() -> None:
    register_env()


def write(folder: Path, model: Path, **told: Any) -> Path:
    path = folder / "rl.toml"
    path.write_text(config_text(model, **told))
    return path


def train(config: Path, run: Path, *more: str) -> int:
    return main(["train", "rl", str(config), "--out", str(run), *more])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rollouts", "steps"),
    [("", 14), ("max_staleness = 1", 28)],  # on older groups
)
def test_a_random_model_learns_what_is_paid_for(
    rollouts: str, steps: int, model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, model, steps=steps, rollouts=rollouts)
    assert train(config, tmp_path / "run") == 0
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    rewards = [line["rollout/reward"] for line in lines]
    assert sum(rewards[-3:]) / 3 > 0.1 + sum(rewards[:3]) / 3
    assert {line["rollout/num_rollouts"] for line in lines} == {16}
    most = 1 if rollouts else 0
    assert max(line["rollout/max_staleness"] for line in lines) == most
    for line in lines:
        assert line["rollout/reward_low"] <= line["rollout/reward"] <= line["rollout/reward_high"]
        assert 0 <= line["rate/sampler_idle"] <= 1
        assert line["time/total_s"] >= line["time/step_s"]
    assert (tmp_path / "run" / "model" / "config.json").exists()


@pytest.mark.slow
def test_partial_groups_play_on_and_only_their_fresh_tokens_are_trained_on(
    model: Path, tmp_path: Path
) -> None:
    lines_file = tmp_path / "run" / "metrics.jsonl"

    class SlowTaskEnv(LowEnv):
        """Takes three steps of the run to end an episode of one task."""

        async def reply(self, message: Message) -> str | None:
            if self.task.task_id == "train-0":
                num = lines_file.read_text().count("\n")
                while lines_file.read_text().count("\n") < num + 3:
                    await asyncio.sleep(0.02)
            return None

    register(ENV_ID, SlowTaskEnv, description="Answer in digits.", should_replace=True)
    rollouts = 'max_staleness = 1\nstale = "partial"\nchoice = "uniform"'
    assert train(write(tmp_path, model, steps=24, rollouts=rollouts), tmp_path / "run") == 0
    lines = metrics(tmp_path / "run")
    assert {line["rollout/num_rollouts"] for line in lines} == {16}
    assert not any(line["rollout/num_dropped"] for line in lines)
    late = [line for line in lines if line["rollout/too_old"]]
    assert late and all(line["rollout/max_staleness"] > 1 for line in late)
    # Answers are sampled in one go here: all tokens of a late group's rollouts are too old.
    assert {round(line["rollout/too_old"] * 16) for line in late} <= {4, 8, 12, 16}


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_tasks_and_weights_that_would_have_come(
    model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, model, steps=7)
    assert train(config, tmp_path / "whole") == 0
    config = write(tmp_path, model, steps=7, more=hold(tmp_path, 3))
    process = start_run(config, tmp_path / "run")
    wait_for_steps(tmp_path / "run", 3, process)
    process.kill()
    process.communicate()
    let_go(tmp_path, 3)
    again = start_run(config, tmp_path / "run", "--json")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert json.loads(out)["resumed_from"] == 2
    names = ("step", "rollout/reward", "rollout/completion_tokens", "train/loss", "train/entropy")
    found, wanted = (
        [{name: line[name] for name in names} for line in metrics(tmp_path / run)]
        for run in ("run", "whole")
    )
    assert found == [pytest.approx(line, abs=1e-4) for line in wanted]
    assert [line["step"] for line in found] == list(range(1, 8))


@pytest.mark.slow
def test_ctrl_c_saves_the_last_step_and_the_same_command_goes_on(
    model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, model, steps=5000)
    process = start_run(config, tmp_path / "run")
    wait_for_steps(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    num = len(metrics(tmp_path / "run"))
    assert f"stopped after step {num}; go on with: katgym train rl {config} --out" in err
    assert train(config, tmp_path / "run", "--steps", str(num + 2)) == 0
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(1, num + 3))


@pytest.mark.slow
def test_another_configuration_is_kept_out_of_the_folder(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(write(tmp_path, model, steps=1), tmp_path / "run") == 0
    before = metrics(tmp_path / "run")
    other = write(tmp_path, model, steps=2, train="algorithm = 'dapo'")
    assert train(other, tmp_path / "run") == 2
    assert 'holds another run (loop.algorithm: there "grpo", here "dapo")' in " ".join(
        capsys.readouterr().err.split()
    )
    assert metrics(tmp_path / "run") == before
    assert train(write(tmp_path, model, steps=1), tmp_path / "new", "--resume") == 2


@pytest.mark.slow
def test_held_out_tasks_are_played_and_the_best_weights_are_the_model(
    model: Path, tmp_path: Path
) -> None:
    more = "[evaluate]\nevery_steps = 2\nnum_tasks = 3\nattempts = 2"
    config = write(tmp_path, model, steps=4, more=more)
    assert train(config, tmp_path / "run") == 0
    text = (tmp_path / "run" / "eval.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert {line["num_rollouts"] for line in lines} == {6}
    assert {(line["env"], line["headline"]) for line in lines} == {
        ("rltest/Low-v0", "success_rate")
    }
    assert [line.get("eval/success") for line in metrics(tmp_path / "run")] == [None, 0.0] * 2
    emitted = {name for line in metrics(tmp_path / "run") for name in line} - {"step"}
    told, known = (
        {re.sub(r"(eval|lesson|rollout/invalid)/.*", r"\1/", name) for name in names}
        for names in (emitted, (*METRICS, *RL_METRICS))
    )
    assert told <= known  # every metric is in the tables
    assert best_of(tmp_path / "run") == {"step": 4, "headline": 0.0}  # of equal ones the newest
    assert weights(tmp_path / "run" / "model") == weights(tmp_path / "run/best/step-000004")


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def best_of(run: Path) -> dict[str, float]:
    """Return step and success rate of a run's best weights."""
    found: dict[str, float] = json.loads((run / "best.json").read_text())["models"][-1]
    return found


@pytest.mark.slow
def test_the_best_on_other_tasks_is_not_the_best(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate = "[evaluate]\nevery_steps = 2\nnum_tasks = {}"
    assert train(write(tmp_path, model, steps=2, more=evaluate.format(2)), run) == 0
    known = json.loads((run / "best.json").read_text())
    known["models"][-1]["headline"] = 0.9
    (run / "best.json").write_text(json.dumps(known))
    assert train(write(tmp_path, model, steps=4, more=evaluate.format(2)), run) == 0
    assert best_of(run) == {"step": 2, "headline": 0.9}  # it still is
    assert train(write(tmp_path, model, steps=6, more=evaluate.format(3)), run) == 0
    assert best_of(run) == {"step": 6, "headline": 0.0}


@pytest.mark.slow
def test_a_model_of_an_earlier_end_is_replaced(model: Path, tmp_path: Path) -> None:
    """A run that was prolonged, and killed after its last checkpoint, before its model."""
    run = tmp_path / "run"
    assert train(write(tmp_path, model, steps=2), run) == 0
    earlier = weights(run / "model")
    assert train(write(tmp_path, model, steps=4), run) == 0
    wanted = weights(run / "model")
    assert wanted != earlier
    (run / "model" / "model.safetensors").write_bytes(earlier)
    (run / "model.json").write_text('{"step": 2}')
    assert train(write(tmp_path, model, steps=4), run) == 0
    assert weights(run / "model") == wanted


@pytest.mark.slow
def test_a_run_begun_anew_takes_nothing_of_the_one_before(model: Path, tmp_path: Path) -> None:
    """Nothing was trained, so another configuration may begin there."""
    run = tmp_path / "run"
    evaluate = "[evaluate]\nevery_steps = 2\nnum_tasks = 2"
    assert train(write(tmp_path, model, steps=2, more=evaluate), run) == 0
    shutil.rmtree(run / "checkpoints")  # as a kill before the first checkpoint leaves it
    (run / "metrics.jsonl").write_text("")
    before = weights(run / "model")
    known = json.loads((run / "best.json").read_text())
    known["models"] = [{"step": 0, "headline": 0.9}]
    (run / "best.json").write_text(json.dumps(known))
    other = write(tmp_path, model, steps=2, train="algorithm = 'dapo'", more=evaluate)
    assert train(other, run) == 0
    assert best_of(run)["headline"] == 0.0
    assert weights(run / "model") != before
    with RolloutStore.open(run / "rollouts") as store:
        records = [r for r in store.sessions() if not r.metadata.get("is_held_out")]
    assert len(records) == 2 * 16  # those of the run before are gone, not trained on


def test_a_policy_that_never_succeeds_is_told_what_to_do(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config_text(model, env="katgym/Arithmetic-v1?level=1", train="max_idle_steps = 2")
    (tmp_path / "rl.toml").write_text(text)
    assert train(tmp_path / "rl.toml", tmp_path / "run") == 2
    assert "the first prompt of 'katgym/Arithmetic-v1?level=1' has" in capsys.readouterr().err
    text = text.replace("max_context_tokens = 400", "max_context_tokens = 2000")
    (tmp_path / "rl.toml").write_text(text)
    assert train(tmp_path / "rl.toml", tmp_path / "run") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "2 steps in a row without a group in which two rewards differ" in told
    assert "All 16 rollouts of the last one got 0: the policy never succeeds. Begin with" in told
    assert (tmp_path / "run" / "checkpoints" / "step-000002").exists()


def test_what_no_step_could_compute_ends_a_run_before_anything_is_played(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, model, train='backend = "flex"')
    assert train(config, tmp_path / "run") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "cannot be trained like this: backend 'flex' has no backward on the CPU" in told
    with RolloutStore.open(tmp_path / "run" / "rollouts") as store:
        assert not store.sessions()


@pytest.mark.slow
@pytest.mark.parametrize("truncated", ["graded", "masked"])
def test_a_run_compares_with_its_first_weights_and_masks_what_was_cut(
    truncated: str, model: Path, tmp_path: Path
) -> None:
    config = write(
        tmp_path, model, steps=2, rollouts="max_episode_tokens = 12",
        train='loss = { kl_coef = 0.1 }\nalgorithm = "reinforce_plus_plus_baseline"',
        more=f'[reference]\n[rewards]\noverlong_buffer_tokens = 4\ntruncated = "{truncated}"',
    )  # fmt: skip
    assert train(config, tmp_path / "run") == 0
    first, second = metrics(tmp_path / "run")
    with RolloutStore.open(tmp_path / "run" / "rollouts") as store:
        steps = [s.record.metadata["step"] for s in store.each() if not is_truncated(as_rollout(s))]
    if truncated == "masked":
        num_rows = [line["train/num_rows"] for line in (first, second)]
        assert num_rows == [steps.count(1), steps.count(2)]
        assert len(steps) < 32
    else:
        assert first["train/ref_kl"] == pytest.approx(0, abs=1e-6)
        assert second["train/ref_kl"] > 1e-6


@pytest.mark.slow
def test_a_student_comes_nearer_to_its_teacher_whatever_the_rewards_are(
    model: Path, tmp_path: Path
) -> None:
    teacher = save_model(tmp_path / "teacher", seed=7, initializer_range=0.3)
    config = write(
        tmp_path, model, steps=3, train='algorithm = "reinforce"',
        more=f'[[teachers]]\npath = "{teacher}"\nreward_weight = 0.0',
    )  # fmt: skip
    assert train(config, tmp_path / "run") == 0
    lines = metrics(tmp_path / "run")
    gaps = [line["train/reverse_kl"] for line in lines]
    assert 0 < gaps[-1] < 0.9 * gaps[0], gaps
    assert gaps == [line[f"train/reverse_kl/{ENV_ID}"] for line in lines]


def test_a_teacher_of_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    teacher = shutil.copytree(model, tmp_path / "teacher")
    told = json.loads((teacher / "tokenizer.json").read_text())
    ids = told["model"]["vocab"]
    one, other = [token for token in ids if token in ("x", "y")]
    ids[one], ids[other] = ids[other], ids[one]
    (teacher / "tokenizer.json").write_text(json.dumps(told))
    config = write(tmp_path, model, more=f'[[teachers]]\npath = "{teacher}"')
    with pytest.raises(
        UsageError, match=r"\[\[teachers\]\] 0: the tokenizer of .* token '[xy]' is "
    ):
        load_frozen(RlConfig.read(config), AutoTokenizer.from_pretrained(model))


def test_steps_with_a_teacher_are_not_idle_whatever_the_rewards_are() -> None:
    watch, taken = LearningWatch(max_idle_steps=1), Taken(groups=())
    watch.check(1, {"rollout/open_groups": 0.0, "train/reverse_kl": 0.5}, taken)
    assert watch.num_idle == 0
    with pytest.raises(RlRunError, match="without a group in which two rewards differ"):
        watch.check(2, {"rollout/open_groups": 0.0}, taken)


@pytest.mark.slow
def test_adapters_are_trained_and_merged(model: Path, tmp_path: Path) -> None:
    config = write(tmp_path, model, steps=2, train="lora_rank = 4")
    assert train(config, tmp_path / "run") == 0
    assert [line["train/is_skipped"] for line in metrics(tmp_path / "run")] == [0.0, 0.0]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_blocking", [False, True])
def test_what_hangs_is_played_again_and_what_hangs_twice_is_masked(
    is_blocking: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reset, which checks the prompt, all 16 rollouts of a step, one of them again.

    The hour that an episode has is over as soon as it hangs, as the loop's clock is then set
    forward. Those that do not hang have all of it, however slow the machine is: one is played at a
    time.
    """
    timeout_s = 3600.0
    episodes, is_released, skipped_s = itertools.count(1), threading.Event(), []
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: time.monotonic() + sum(skipped_s))

    class HangingEnv(LowEnv):
        async def setup(self) -> None:
            # 1 is the first reset, 2 and 3 are one rollout, of the others each has two.
            if (number := next(episodes)) in (1, 3) or (number % 2 == 0 and number <= 32):
                skipped_s.append(timeout_s)
                await (
                    asyncio.to_thread(is_released.wait) if is_blocking else asyncio.Event().wait()
                )

    register(ENV_ID, HangingEnv, description="Hangs.", should_replace=True)
    config = write(
        tmp_path, model, steps=2, rollouts=f"timeout_s = {timeout_s}\nmax_concurrency = 1"
    )
    try:
        assert train(config, tmp_path / "run") == 0
    finally:
        is_released.set()
    first, second = metrics(tmp_path / "run")
    assert first["rollout/num_invalid"] == first["rollout/invalid/env_timeout"] == 1
    assert (first["rollout/num_rollouts"], first["rollout/num_retries"]) == (16, 16)
    assert (second["rollout/num_invalid"], second["rollout/num_retries"]) == (0, 0)
    with RolloutStore.open(tmp_path / "run" / "rollouts") as store:
        records = list(store.sessions())
    advantages = ["advantage" in record.metadata for record in records]
    assert (len(records), advantages.count(False)) == (32, 1)
