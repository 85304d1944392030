"""Envs as TRL's trainer takes them: played by hand here, by the trainer in `test_grpo.py`."""

from __future__ import annotations

from typing import Any

import pytest

import katgym
from katgym_plugin_trl import environment_class, reward, rows

ENV_ID = "katgym/TreasureHunt-v1"


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def native(seed: int, **kwargs: Any) -> katgym.Env:
    env = katgym.make(ENV_ID, **kwargs)
    env.reset(seed=seed)
    return env


def test_a_seed_gives_the_episode_and_the_reward_that_it_gives_natively() -> None:
    environments = [environment_class(ENV_ID)() for _ in range(2)]
    env = native(5)
    chest = int(env.task.answer)
    for environment, number in zip(environments, (chest, chest % 2 + 1), strict=True):
        assert environment.reset(seed=5) == env.messages[0]["content"]
        open_chest = environment.open_chest  # type: ignore[attr-defined]  # made of a tool
        assert (open_chest(number=number) == "The treasure is here!") == (number == chest)
        assert open_chest(number=number) == "The episode has ended."
    assert reward([[say("done")], [say("done")]], environments) == [1.0, 0.0]


def test_rows_are_the_same_for_a_seed_and_differ_among_themselves() -> None:
    made = rows(ENV_ID, num_tasks=4, seed=1, split="test", prompt="Play.")
    assert made == rows(ENV_ID, num_tasks=4, seed=1, split="test", prompt="Play.")
    assert len({row["seed"] for row in made}) == 4
    assert made[0]["prompt"] == [{"role": "user", "content": "Play."}]
    assert rows(ENV_ID, num_tasks=1, seed=2)[0]["seed"] != made[0]["seed"]
    environment = environment_class(ENV_ID)()
    environment.reset(**made[0])
    assert environment._env.task.split == "test"


class Sum(katgym.Env):
    """Two and two, with a tool of all kinds of arguments."""

    default_max_turns = 2

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-0", prompt="2 + 2?", answer="4")]

    @katgym.tool
    def add(
        self, numbers: list[int], name: str = "sum", scale: float | None = None, deep: bool = False
    ) -> str:
        """Add numbers.

        Args:
            numbers: the numbers,
                two or more
            scale: what the sum is multiplied by
        """
        if name == "broken":
            raise katgym.InfrastructureError("no numbers left")
        return str(sum(numbers))

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == self.task.answer


@pytest.fixture
def sums() -> Any:
    katgym.register("trl_test/Sum-v0", Sum, should_replace=True)
    return environment_class("trl_test/Sum-v0")


def test_the_last_text_is_the_answer_and_a_rollout_without_one_is_cut_off(sums: Any) -> None:
    environments = [sums() for _ in range(4)]
    for environment in environments:
        environment.reset(seed=1)
    assert environments[0].add(numbers=[2, 2]) == "4"
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    completions = [[call, {"role": "tool"}, say("4")], [say("5")], [call], []]
    assert reward(completions, environments) == [1.0, 0.0, 0.0, 0.0]
    assert environments[2]._env.last_reward.failure_kind == "max_turns"


def test_broken_infrastructure_is_no_reward(sums: Any) -> None:
    environment = sums()
    environment.reset(seed=1)
    with pytest.raises(katgym.InfrastructureError, match="no numbers left"):
        environment.add(numbers=[], name="broken")
    assert reward([[say("4")]], [environment]) == [None]


def test_what_trl_reads_of_a_tool_is_what_katgym_offers(sums: Any) -> None:
    schemas = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="needs transformers"
    )
    told = schemas.get_json_schema(sums().add)["function"]
    assert (told["name"], told["description"]) == ("add", "Add numbers.")
    properties = told["parameters"]["properties"]
    assert told["parameters"]["required"] == ["numbers"]
    assert properties["numbers"] == {
        "type": "array", "items": {"type": "integer"}, "description": "the numbers, two or more"
    }  # fmt: skip
    assert properties["name"] == {"type": "string", "description": 'Default: "sum"'}
    assert properties["scale"]["type"] == "number" and properties["scale"]["nullable"]
    assert properties["deep"]["type"] == "boolean"


def test_envs_that_trl_cannot_play_are_wrong_usage() -> None:
    class Reset(Sum):
        @katgym.tool
        def get_reward(self) -> str:
            """Return it."""
            return ""

    class Match(Sum):
        seats = ("one", "other")

    katgym.register("trl_test/Reset-v0", Reset, should_replace=True)
    katgym.register("trl_test/Match-v0", Match, should_replace=True)
    with pytest.raises(katgym.UsageError, match="TRL keeps the names"):
        environment_class("trl_test/Reset-v0")
    with pytest.raises(katgym.UsageError, match="has 2 seats"):
        environment_class("trl_test/Match-v0")
