"""Tasks have stable hashes and ids; task sets find them by index and id."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle

import numpy as np
import pytest

from katgym.environment.task import SPLITS, ProceduralTaskSet, Task, TaskSet
from katgym.errors import UnknownNameError, UsageError


def squares(size: int = 20, split: str = "train", prefix: str = "") -> ProceduralTaskSet:
    def make(rng: np.random.Generator, index: int) -> Task:
        number = int(rng.integers(10**9))
        return Task(task_id="ignored", prompt=f"{number}^2?", answer=number**2, data={"i": index})

    return ProceduralTaskSet(make, size=size, split=split, prefix=prefix)


def test_sha256_is_that_of_the_canonical_json() -> None:
    task = Task(task_id="a", prompt="é", answer=[1, None], data={"b": 1, "a": 2})
    text = '{"answer":[1,null],"data":{"a":2,"b":1},"prompt":"é"}'
    assert task.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_sha256_is_of_content_alone_and_of_json_alone() -> None:
    task = Task(task_id="a", prompt="p", answer="x", data={"a": 1, "b": 2})
    same = Task(task_id="b", prompt="p", answer="x", data={"b": 2, "a": 1}, split="test")
    assert task.sha256 == same.sha256 == pickle.loads(pickle.dumps(task)).sha256
    changes = ({"prompt": "q"}, {"answer": None}, {"data": {"a": 1, "b": 3}})
    for change in changes:
        assert dataclasses.replace(task, **change).sha256 != task.sha256
    assert len(Task(task_id="a", prompt="\ud800").sha256) == 64
    with pytest.raises(UsageError, match=r"task 'a' holds a value that is not JSON.*set"):
        _ = Task(task_id="a", data={"x": {1}}).sha256


def test_task_set_by_index_id_and_order() -> None:
    tasks = TaskSet([Task(task_id=i) for i in "abc"], split="test")
    assert [t.task_id for t in tasks] == ["a", "b", "c"]
    assert len(tasks) == 3
    assert tasks.get("b") is tasks[1] is tasks[-2]
    assert [t.task_id for t in tasks[1:]] == ["b", "c"]
    assert [t.split for t in tasks] == ["test"] * 3
    assert TaskSet([Task(task_id="a", split="test")], split="test").get("a").split == "test"


def test_task_set_errors() -> None:
    tasks = TaskSet([Task(task_id="alpha"), Task(task_id="beta")], split="test")
    with pytest.raises(UnknownNameError) as caught:
        tasks.get("alpa")
    text = "unknown task id 'alpa'. Did you mean 'alpha'? (split 'test')"
    assert str(caught.value) == text
    with pytest.raises(UsageError, match=r"^task id 'b' occurs twice in split 'train'$"):
        TaskSet([Task(task_id=i) for i in "abcb"])
    with pytest.raises(IndexError):
        tasks[2]


def test_procedural_tasks_depend_on_split_and_index_only() -> None:
    one, two = squares(), squares(size=5)
    assert [one[i] for i in (4, 2, 0)] == [two[i] for i in (4, 2, 0)]
    assert one[3] == one[3] == one[-17] == list(one)[3] == one[2:5][1]
    assert len({t.sha256 for t in one}) == 20
    assert {t.sha256 for t in one} & {t.sha256 for t in squares(split="test")} == set()


def test_procedural_tasks_have_ids_by_index_and_are_lazy(subtests: pytest.Subtests) -> None:
    tasks = squares(prefix="L1-", split="test")
    assert (tasks[7].task_id, tasks[7].split) == ("L1-test-000007", "test")
    assert tasks.get("L1-test-000007") == tasks[7]
    assert squares(size=10**7).get("train-1234567").task_id == "train-1234567"
    assert len(squares(size=10**12)) == 10**12
    assert squares(size=10**12)[10**12 - 1].task_id == "train-999999999999"
    others = ["test-000020", "train-000001", "test-1", "test-0000001", "test-٠٠٠٠٠١",
              "test-000001 ", ""]  # fmt: skip
    known = "in split 'test'. Known: 'test-000000' to 'test-000019'."
    for task_id in others:
        with subtests.test(task_id=task_id):
            with pytest.raises(UnknownNameError) as caught:
                squares(split="test").get(task_id)
            assert str(caught.value) == f"unknown task id {task_id!r} {known}"
    for index in (20, -21):
        with pytest.raises(IndexError, match=rf"task index {index} is outside 0\.\.19"):
            squares()[index]


def test_splits_that_are_told_share_no_prompt_and_what_cannot_be_split_is_an_error() -> None:
    def dice(split: str, sides: int) -> ProceduralTaskSet:
        def make(rng: np.random.Generator, index: int) -> Task:
            return Task(task_id="", prompt=f"Roll:  {rng.integers(sides)}")

        return ProceduralTaskSet(make, size=300, split=split, splits=SPLITS)

    prompts = [{task.prompt for task in dice(split, 60)} for split in SPLITS]
    assert len(set().union(*prompts)) == sum(map(len, prompts)) == 60
    assert [task.prompt for task in dice("test", 60)] == [task.prompt for task in dice("test", 60)]
    owners = [split for split in SPLITS if _is_drawn(dice(split, 1))]
    assert len(owners) == 1
    with pytest.raises(UnknownNameError, match="unknown split 'dev'"):
        dice("dev", 60)


def test_a_split_has_a_usual_size_and_is_never_empty() -> None:
    def make(rng: np.random.Generator, index: int) -> Task:
        return Task(task_id="", prompt=str(index))

    sizes = [len(ProceduralTaskSet(make, split=split)) for split in SPLITS]
    assert sizes == [10_000, 1_000, 1_000]
    with pytest.raises(UsageError, match="size is at least 1, got 0"):
        ProceduralTaskSet(make, size=0)


def _is_drawn(tasks: ProceduralTaskSet) -> bool:
    try:
        return bool(tasks[0])
    except UsageError as e:
        assert "too few different prompts for 3 splits" in str(e)
        return False
