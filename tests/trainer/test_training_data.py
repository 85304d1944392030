"""Which rollouts are trained on, and what each of their tokens weighs.

At the end: those of a rollout store, and rows of its sessions token by token.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from made_rollouts import short_rollout
from plain_rollout import plain_rollout

from katgym.cli.main import main
from katgym.environment.failure import FailureKind
from katgym.environment.messages import assistant, user
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.play.rollout import Rollout, Turn
from katgym.policies.base import TokenRecord
from katgym.policies.rendering.chatml_renderer import ChatMLRenderer
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym.rollout_store import (
    RolloutStore,
    SessionStatus,
    export,
    record_rollout,
    rollout_groups,
    rollouts,
    stored_groups,
)
from katgym_trainer import Row
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.rollouts.rollout_files import read_rollouts
from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows
from katgym_trainer.runs.training_data import Source, TrainingData, sources_of

RENDERER = ChatMLRenderer(byte_tokenizer())


def rollout(
    task: str, num_trained: int, reward: float | None, attempt: int = 0, who: str = "student"
) -> Rollout:
    """Return a rollout of one turn that answers some tokens, of bytes and an end as well."""
    record = TokenRecord(
        prompt_ids=[1, 2, 3],
        completion_ids=list(range(10, 10 + num_trained)),
        policy_logprobs=[-0.5] * num_trained,
    )
    turn = Turn(
        messages=[user("?")], answer=assistant("x" * (num_trained - 1)), tokens=record,
        num_prompt_tokens=3, num_completion_tokens=num_trained,
    )  # fmt: skip
    kind = FailureKind.SANDBOX_ERROR
    return plain_rollout(
        env_id="acme/Toy-v0", task_id=task, task_sha256="s", seed=0, attempt=attempt,
        episode_id=f"{who}-{task}-{attempt}", turns=[turn],
        reward=Reward.invalid(kind, "died") if reward is None else Reward(value=reward),
    )  # fmt: skip


def write(path: Path, rollouts: Sequence[Rollout]) -> Path:
    path.write_text("".join(json.dumps(r.to_json()) + "\n" for r in rollouts))
    return path


def config(kind: TrainKind, **data: Any) -> TrainRunConfig:
    raw = {"model": {"path": "m"}, "data": {"rollouts": ["a"], **data}}
    return TrainRunConfig.of(raw, kind=kind, name="a.toml")


def read(config: TrainRunConfig, path: Path, teacher: Path | None = None) -> TrainingData:
    sources = [Source(path=path, name="sampled", is_teacher=False)]
    if teacher is not None:
        sources.append(Source(path=teacher, name="taught", is_teacher=True))
    return TrainingData.read(config, RENDERER, sources=sources)


def weights(data: TrainingData) -> list[float]:
    """Return the weight of each rollout's trained tokens, which have all the same."""
    found = []
    for example in data.examples:
        (row,) = example.rows
        (weight,) = set(row.weight[row.loss_mask].tolist())
        found.append(weight)
    return found


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """Task a twice right and once wrong, b once right, c never, one that broke."""
    return write(
        tmp_path / "sampled.jsonl",
        [
            rollout("a", 4, 1.0, 0),
            rollout("a", 2, 1.0, 1),
            rollout("a", 5, 0.0, 2),
            rollout("b", 8, 1.0),
            rollout("c", 3, 0.5),
            rollout("d", 3, None),
        ],
    )


def test_sft_takes_all_that_have_a_reward_and_all_tokens_alike(sampled: Path) -> None:
    data = read(config(TrainKind.SFT), sampled)
    assert [e.num_trained for e in data.examples] == [4, 2, 5, 8, 3]
    assert data.num_left_out == {"no valid reward": 1}
    assert weights(data) == [1, 1, 1, 1, 1]


def test_rft_takes_the_best_and_all_tasks_alike(sampled: Path) -> None:
    data = read(config(TrainKind.RFT), sampled)
    assert [e.num_trained for e in data.examples] == [4, 2, 8]
    assert data.num_left_out == {"no valid reward": 1, "reward too low": 2}
    assert weights(data) == [1 / 8, 1 / 4, 1 / 8]  # 1 / (rollouts of the task, times tokens)
    sums: dict[Any, float] = {}
    for example in data.examples:
        (row,) = example.rows
        sums[example.task] = sums.get(example.task, 0) + row.weight[row.loss_mask].sum()
    assert list(sums.values()) == [1.0, 1.0]


def test_a_lower_bound_lets_more_in(sampled: Path) -> None:
    data = read(config(TrainKind.RFT, min_reward=0.5, weights="rollouts"), sampled)
    assert [e.num_trained for e in data.examples] == [4, 2, 8, 3]
    assert weights(data) == [1 / 4, 1 / 2, 1 / 8, 1 / 3]


def test_teachers_are_taken_whatever_their_reward_and_weigh_by_themselves(
    sampled: Path, tmp_path: Path
) -> None:
    told = [("a", 2, 0.0, 0), ("c", 4, 1.0, 0), ("c", 1, 0.0, 1), ("d", 1, None, 0)]
    taught = [rollout(*arguments, who="teacher") for arguments in told]
    teacher = write(tmp_path / "teacher.jsonl", taught)
    data = read(config(TrainKind.RFT, teacher_weight=0.5), sampled, teacher)
    assert weights(data) == [1 / 8, 1 / 4, 1 / 8, 0.5 / 2, 0.5 / (2 * 4), 0.5 / 2]
    assert data.num_left_out == {"no valid reward": 2, "reward too low": 2}
    data = read(config(TrainKind.SFT, teacher_weight=3), sampled, teacher)
    assert weights(data) == [1, 1, 1, 1, 1, 3, 3, 3]


def test_tokens_stay_as_sampled_but_for_teachers(sampled: Path, tmp_path: Path) -> None:
    teacher = write(tmp_path / "teacher.jsonl", [rollout("c", 3, 1.0, who="teacher")])
    data = read(config(TrainKind.SFT), sampled, teacher)
    assert data.examples[0].rows[0].token_ids.tolist() == [1, 2, 3, 10, 11, 12, 13]
    (row,) = data.examples[-1].rows
    text = byte_tokenizer().decode(row.token_ids.tolist())
    assert text == "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\nxx<|im_end|>"
    assert row.loss_mask.tolist() == [False] * (len(row) - 3) + [True] * 3


def test_an_answer_without_a_boundary_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where one token holds the line breaks of the header and of the answer."""
    merging = byte_tokenizer(["\n\n"])
    renderer = choose_renderer(merging, name="default")
    taught = [rollout("a", 4, 1.0), rollout("b", 4, 1.0)]
    odd = msgspec.structs.replace(taught[1].turns[0], answer=assistant("\nxx"))
    taught[1] = dataclasses.replace(taught[1], turns=[odd])
    source = Source(path=write(tmp_path / "t.jsonl", taught), name="taught", is_teacher=True)
    data = TrainingData.read(config(TrainKind.SFT), renderer, sources=[source])
    reason = "an answer whose tokens cannot be told from its chat format's"
    assert (len(data.examples), data.num_left_out) == (1, {reason: 1})
    assert "DefaultRenderer does not put the answer right behind its prompt" in caplog.text


def test_turns_with_masked_errors_are_not_trained(tmp_path: Path) -> None:
    good, cut = rollout("a", 2, 1.0), rollout("b", 2, 1.0)
    cut = dataclasses.replace(
        cut, turns=[msgspec.structs.replace(cut.turns[0], finish_reason="length")]
    )
    both = write(tmp_path / "both.jsonl", [good, cut])
    assert read(config(TrainKind.SFT), both).num_left_out == {}
    data = read(config(TrainKind.SFT, masks=["truncated"]), both)
    assert len(data.examples) == 1 and data.num_left_out == {"no token to train": 1}


def test_what_cannot_be_read_is_named_with_its_source(sampled: Path, tmp_path: Path) -> None:
    words = r"rollout 'student-a-0' of 'taught' is in 'sampled' already; what is to count more has"
    with pytest.raises(UsageError, match=words):
        read(config(TrainKind.SFT), sampled, sampled)
    (tmp_path / "bad.jsonl").write_text('{"env_id": 3}\n')
    with pytest.raises(UsageError, match=r"\[data\] 'sampled': .* line 1: not a rollout as"):
        read(config(TrainKind.SFT), tmp_path / "bad.jsonl")
    said = rollout("a", 2, 1.0)
    silent = dataclasses.replace(said, turns=[msgspec.structs.replace(said.turns[0], answer=None)])
    teacher = write(tmp_path / "silent.jsonl", [silent])
    with pytest.raises(UsageError, match=r"\[data\] 'taught': turn 0 of .* has no answer"):
        read(config(TrainKind.SFT), write(tmp_path / "e.jsonl", []), teacher)


def test_rows_are_those_of_the_rollouts_that_are_asked_for(sampled: Path) -> None:
    data = read(config(TrainKind.SFT), sampled)
    rows = data.rows([3, 1])
    assert rows[0].token_ids.tolist() == [1, 2, 3, *range(10, 18)]
    assert rows[1].token_ids.tolist() == [1, 2, 3, 10, 11]
    assert rows[1].loss_mask.tolist() == [False, False, False, True, True]
    assert data.rows([]) == []


def test_the_identity_changes_with_what_is_trained(sampled: Path) -> None:
    one = read(config(TrainKind.SFT), sampled).identity()
    assert one == read(config(TrainKind.SFT), sampled).identity()
    other = read(config(TrainKind.SFT, weights="rollouts"), sampled).identity()
    assert one["sources"] == other["sources"] and one["num_rollouts"] == other["num_rollouts"] == 5
    assert one["rows_sha256"] != other["rows_sha256"]
    before = [dataclasses.replace(rollout("a", 4, 1.0, 0), reason="x")]
    write(sampled, before)
    assert read(config(TrainKind.SFT), sampled).identity()["sources"] != one["sources"]


def test_nothing_left_says_why(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.jsonl", [rollout("a", 2, 0.5), rollout("b", 2, None)])
    words = r"no rollout is left to train on \(1 with reward too low, 1 with no valid reward\)"
    with pytest.raises(UsageError, match=words):
        read(config(TrainKind.RFT), bad)
    with pytest.raises(UsageError, match=r"no rollout is left to train on \(the files are empty\)"):
        read(config(TrainKind.SFT), write(tmp_path / "empty.jsonl", []))


def test_paths_without_anything_are_named(tmp_path: Path) -> None:
    nothing = config(TrainKind.SFT, rollouts=["no/such"])
    with pytest.raises(
        UsageError, match=r"\[data\] rollouts: there is no file or folder 'no/such'"
    ):
        sources_of(nothing, tmp_path)


def test_the_oracle_plays_once_into_the_folder(tmp_path: Path) -> None:
    oracle = {"envs": ["katgym/Arithmetic-v1?level=1"], "num_tasks": 3, "seed": 5}
    wanted = config(TrainKind.SFT, rollouts=[], oracle=oracle)
    (source,) = sources_of(wanted, tmp_path)
    assert source == Source(path=tmp_path / "oracle", name="oracle", is_teacher=True)
    recorded = list(read_rollouts(tmp_path / "oracle"))
    assert [(r.split, r.reward.value) for r in recorded] == [("train", 1.0)] * 3
    sources_of(wanted, tmp_path)
    assert list(read_rollouts(tmp_path / "oracle")) == recorded


def test_an_oracle_of_one_call_a_turn_plays_levels_of_one_env(tmp_path: Path) -> None:
    hunt = "katgym/TreasureHunt-v1"
    envs = [f"{hunt}?level=2", "katgym/Arithmetic-v1?level=7", f"{hunt}?level=6&max_turns=25"]
    oracle = {"envs": envs, "num_tasks": 2, "max_calls": 1}
    sources = sources_of(config(TrainKind.SFT, rollouts=[], oracle=oracle), tmp_path)
    assert [source.name for source in sources] == ["oracle", "oracle-2"]
    played = [list(read_rollouts(source.path)) for source in sources]
    ids = [sorted(made.env_id for made in rollouts) for rollouts in played]
    assert ids == [["katgym/Arithmetic-v1"] * 2 + [hunt] * 2, [hunt] * 2]
    rollouts = played[0] + played[1]
    assert [made.reward.value for made in rollouts] == [1.0] * 6
    assert {len(turn.tool_results) for made in rollouts for turn in made.turns} == {0, 1}
    with pytest.raises(UsageError, match=r"\[data\] oracle: max_calls is .*, got 0"):
        config(TrainKind.SFT, oracle={**oracle, "max_calls": 0})


ARITHMETIC = "katgym/Arithmetic-v1?level=1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two groups whose rollouts ended in turns, one of them without a valid reward."""
    folder = tmp_path / "store"
    with RolloutStore.open(folder) as opened:
        for name, group, attempt, reward in (
            ("b1", "b", 1, 0.0), ("a0", "a", 0, 1.0), ("b0", "b", 0, 1.0), ("a1", "a", 1, None),
        ):  # fmt: skip
            tokens = range(10, 13 + attempt)
            made = short_rollout(name, reward, *tokens, task_id=group, attempt=attempt)
            record_rollout(opened, made, group_id=group, metadata={"group_size": 2})
    return folder


def test_rollouts_come_group_by_group_with_their_tools(store: Path) -> None:
    assert [rollout.episode_id for rollout in read_rollouts(store)] == ["a0", "a1", "b0", "b1"]
    data = read(config(TrainKind.SFT), store)
    assert [(example.task[1], example.reward) for example in data.examples] == [
        ("a", 1.0), ("b", 1.0), ("b", 0.0),
    ]  # fmt: skip
    assert data.num_left_out == {"no valid reward": 1}
    assert data.rows([2])[0].token_ids.tolist() == [1, 2, 10, 11, 12, 13]
    assert read(config(TrainKind.RFT), store).num_left_out == {
        "no valid reward": 1,
        "reward too low": 1,
    }


def test_sealing_changes_no_identity_and_new_rollouts_and_rewards_do(store: Path) -> None:
    before = read(config(TrainKind.SFT), store).identity()
    with RolloutStore.open(store) as opened:
        opened.update_session("b1", reward=Reward(value=0.5))
        changed = read(config(TrainKind.SFT), store).identity()
        opened.seal()
    assert read(config(TrainKind.SFT), store).identity() == changed
    assert changed["rows_sha256"] == before["rows_sha256"]
    assert changed["sources"] != before["sources"]
    with RolloutStore.open(store) as opened:
        record_rollout(opened, short_rollout("c", 1.0, 9))
    assert read(config(TrainKind.SFT), store).identity()["rows_sha256"] != before["rows_sha256"]


def test_a_store_that_cannot_be_read_is_named(store: Path) -> None:
    connection = sqlite3.connect(store / "live.sqlite")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(UsageError, match=r"\[data\] 'sampled': .* was written by an older katgym"):
        read(config(TrainKind.SFT), store)


def test_a_group_of_the_store_has_the_advantages_of_its_rewards(store: Path) -> None:
    with RolloutStore.open(store) as opened:
        groups = dict(stored_groups(opened))
    rows = {row.rollout: row.advantages[-1] for row in group_rows([groups["b"]], "dr_grpo")}
    assert rows == {("b0", "player"): 0.5, ("b1", "player"): -0.5}


CONFIG = """
[model]
path = "{model}"

[data]
rollouts = ["{folder}/collected"]
teachers = ["{folder}/teachers"]

[train]
num_steps = 2
batch_rollouts = 4
learning_rate = 1e-2
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_sampled"), [("sft", 4), ("rft", 0)])
def test_collect_then_train(tiny_folder: Path, tmp_path: Path, kind: str, num_sampled: int) -> None:
    """The random model earns nothing, so `rft` has its teacher alone."""
    for policy, name in ((f"hf:{tiny_folder}", "collected"), ("oracle", "teachers")):
        told = ["--policy", policy, "--tasks", "2", "--group-size", "2", "--max-tokens", "8"]
        store = ["--store", str(tmp_path / name)]
        assert main(["rollouts", "collect", ARITHMETIC, *told, *store]) == 0
    text = CONFIG.format(model=tiny_folder, folder=tmp_path)
    (tmp_path / "tiny.toml").write_text(text)
    assert main(["train", kind, str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run")]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    lock = json.loads((tmp_path / "run/lock.json").read_text())
    assert f'"num_rollouts": {num_sampled + 4}' in json.dumps(lock)
    with RolloutStore.open(tmp_path / "teachers") as opened:
        taught = [rollouts(opened, record.session_id) for record in opened.sessions()]
    assert [rollout.has_tokens for rollout in taught] == [False] * 4


HELPERS = Path(__file__).parents[1] / "katgym/rollout_store/made_sessions.py"


@pytest.fixture(scope="module")
def made() -> Any:
    """The sessions of the store's own tests."""
    spec = importlib.util.spec_from_file_location("made_sessions", HELPERS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("made_sessions", module)
    spec.loader.exec_module(module)
    return module


def values(row: Row) -> tuple[list[int], list[bool], list[float] | None]:
    logprobs = None if row.policy_logprobs is None else row.policy_logprobs.tolist()
    return row.token_ids.tolist(), row.loss_mask.tolist(), logprobs


F, T = False, True
BRANCHED_ROWS = [
    ([1, 2, 3, 4, 5, 6, 7], [F, F, T, T, F, T, T], [0, 0, -0.375, -0.5, 0, -0.75, -0.875]),
    ([1, 2, 8, 9], [F, F, F, T], [0, 0, 0, -1.125]),
]
TWO_ROWS = [
    ([1, 2, 3], [F, F, T], [0, 0, -0.375]),
    ([1, 2, 4, 5], [F, F, T, T], [0, 0, -0.5, -0.625]),
]


def test_rows_of_branches_and_of_several_answers(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path) as store:
        made.add(store, "s1", made.BRANCHED, reward=1.0)
        made.add(store, "s2", made.TWO_ANSWERS, reward=0.0)
        for should_seal in (False, True):
            if should_seal:
                store.seal()
            rows = rollout_rows(rollouts(store, "s1"), advantage=0.5)
            assert [values(row) for row in rows] == BRANCHED_ROWS
            assert {row.rollout for row in rows} == {("s1", "agent")}
            # Node 0 called a tool and got its result: those tokens are kept by pruning.
            assert rows[0].is_kept.tolist() == [F, F, T, T, F, F, F]
            assert [values(row) for row in rollout_rows(rollouts(store, "s2"))] == TWO_ROWS


def test_failed_sessions_are_in_no_row_and_no_mean(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path) as store:
        made.add(store, "good", made.BRANCHED, reward=1.0)
        made.add(store, "bad", made.TWO_ANSWERS, reward=0.0)
        made.add(store, "failed", made.BRANCHED, status=SessionStatus.FAILED, reward=9.0)
        made.add(store, "silent", made.BRANCHED)
        groups = rollout_groups(store)
        assert [len(group.rollouts) for group in groups] == [4]
        rows = group_rows(groups, "dr_grpo")  # the mean of 1 and 0 is 0.5
        found = {row.rollout: row.advantages[-1] for row in rows}
        assert found == {("good", "agent"): 0.5, ("bad", "agent"): -0.5}


def test_exported_rows_are_the_trainers(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path / "store") as store:
        made.add(store, "s1", made.BRANCHED, reward=1.0)
        made.add(store, "s2", made.TWO_ANSWERS, reward=0.0)
        expected = [r for name in ("s1", "s2") for r in rollout_rows(rollouts(store, name))]
        assert export(store, tmp_path / "rows.jsonl", format="rows") == 4
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    rows = [
        Row(row["token_ids"], row["loss_mask"], row["policy_logprobs"], group=row["group"],
            rollout=(row["rollout"], row["seat"]))
        for row in lines
    ]  # fmt: skip
    for row, other in zip(rows, expected, strict=True):
        assert values(row) == values(other)
        assert row.rollout == other.rollout
        assert np.isfinite(row.advantages).all()
    assert [row["reward"] for row in lines] == [1.0, 1.0, 0.0, 0.0]
