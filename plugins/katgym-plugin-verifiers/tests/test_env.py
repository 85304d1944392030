"""Tasksets of verifiers as envs: one message, tools with a state, an environment as the user.

One long module: upstream loads a taskset from a module by name, and each test makes its own of the
classes here.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest
import verifiers.v1 as vf

import katgym
from katgym.certificate.certify import CONTRACT, check_env


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def form(self, trace: vf.Trace) -> dict[str, float]:
        return {"short": float(0 < len(trace.last_reply) < 5)}

    @vf.metric
    async def num_messages(self, trace: vf.Trace) -> float:
        return float(len(trace.messages))


class SumsConfig(vf.TasksetConfig):
    first: int = 0
    size: int = 20


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for n in range(self.config.first, self.config.first + self.config.size):
            data = SumData(prompt=f"{n} + 1?", system_prompt="Say a number.", answer=str(n + 1))
            yield SumTask(data, self.config.task)


class ShopState(vf.State):
    basket: list[str] = pydantic.Field(default_factory=list)


class ShopTools(vf.Toolset[vf.ToolsetConfig, ShopState]):
    async def setup_task(self, task: vf.TaskData) -> None:
        self.task = task

    @vf.tool
    def price(self, good: str, count: int = 1) -> dict[str, int]:
        """Tell what a good costs."""
        return {"price": {"pear": 2, "plum": 3}[good] * count}

    @vf.tool(name="put")
    async def put_into_basket(self, good: str) -> str:
        """Put a good into the basket."""
        self.state.basket.append(good)
        return f"{self.task.prompt} {self.state.basket}"


class Clock(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    async def setup(self) -> None:
        self.num_calls = 0

    @vf.tool
    def tick(self) -> list[str]:
        """Count."""
        self.num_calls += 1
        return ["tick", str(self.num_calls)]

    @vf.tool
    async def wait(self, time_s: float) -> None:
        """Wait."""
        await asyncio.sleep(time_s)


class ShopTask(vf.Task[vf.TaskData, ShopState]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [ShopTools(vf.ToolsetConfig())]

    @vf.stop
    async def is_full(self, trace: vf.Trace) -> bool:
        return len(trace.state.basket) > 2

    @vf.reward
    async def bought(self, trace: vf.Trace) -> float:
        return len(trace.state.basket) / 4


class Shop(vf.Taskset[ShopTask]):
    INFINITE = True

    def load(self) -> Iterator[ShopTask]:
        while True:
            yield ShopTask(vf.TaskData(prompt=[vf.UserMessage(content="Buy a pear.")]))

    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [Clock(vf.SharedToolsetConfig())]


class GuessTask(vf.Task[SumData]):
    pass


class Guess(vf.Taskset[GuessTask]):
    def load(self) -> Iterator[GuessTask]:
        for n in range(10):
            yield GuessTask(SumData(answer=str(n), id=f"guess-{n}"))


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    """A user that opens, says if a guess is too low, and is content or hangs up."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn("Guess.")
            while not segment.terminated and segment.last_reply != task.data.answer:
                told = "low" if int(segment.last_reply) < int(task.data.answer) else "high"
                segment = await talk.turn([{"role": "user", "content": told}])
        talk.trace.record_reward("won", 0.0 if segment.terminated else 1.0)

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        episode.traces[0].record_metric("num_turns", episode.num_turns)


def module(name: str, *exported: type) -> str:
    """Make classes a module, as they would be in a package."""
    made: Any = types.ModuleType(name)
    made.__dict__.update({item.__name__: item for item in exported})
    made.__all__ = [item.__name__ for item in exported]
    sys.modules[name] = made
    return name


def play(name: str, *exported: type, **options: Any) -> katgym.Env:
    env = katgym.make("verifiers/Env-v0", taskset=module(name, *exported), **options)
    env.tasks("train")
    return env


@pytest.fixture
def shop() -> Iterator[katgym.Env]:
    env = play("shop", Shop, num_tasks=3, test={})
    yield env
    env.close()


def test_a_task_is_answered_and_its_rewards_add_up_by_weight() -> None:
    env = play("sums", Sums)
    opening, _ = env.reset(options={"task_id": "000014"})
    assert opening == [
        {"role": "system", "content": "Say a number."}, {"role": "user", "content": "14 + 1?"}
    ]  # fmt: skip
    assert env.task.data["answer"] == "15" and not env.tools
    _, reward, terminated, *_ = env.step("15")
    assert (reward, terminated, env.success.is_met(env.last_reward)) == (1.0, True, True)
    assert env.artifacts["verifiers"] == {
        "rewards": {
            "right": {"score": 1.0, "weight": 0.75}, "short": {"score": 1.0, "weight": 0.25}
        },
        "metrics": {"num_messages": 3.0},
    }  # fmt: skip
    env.reset(options={"task_id": "000014"})
    assert env.step("16")[1] == 0.25


def test_examples_in_a_prompt_are_shown_and_are_not_the_policys() -> None:
    class Shown(vf.Taskset[SumTask]):
        def load(self) -> Iterator[SumTask]:
            said: list[Any] = [vf.UserMessage(content="0 + 1?"), vf.AssistantMessage(content="1")]
            last = vf.UserMessage(content=[vf.TextContentPart(text="1 + 1?")])
            yield SumTask(SumData(prompt=[*said, last], answer="2"))

    env = play("shown", Shown, test={})
    assert env.reset(seed=0)[0] == [
        {"role": "user", "content": "0 + 1?"}, {"role": "assistant", "content": "1"},
        {"role": "user", "content": "1 + 1?"},
    ]  # fmt: skip
    assert env._episode.agent.trace.num_turns == 0
    assert env.step("2")[1] == 1.0


def test_the_threshold_of_success_is_an_argument() -> None:
    env = play("sums", Sums, threshold=0.75)
    env.reset(seed=1)
    assert env.step(f"It is {env.task.data['answer']}")[1] == 0.0
    env.reset(seed=1)
    assert env.step(env.task.data["answer"])[1] == 1.0 and env.success.threshold == 0.75


def test_splits_share_no_task_and_a_seed_gives_the_same_one_elsewhere() -> None:
    env = play("sums", Sums)
    train, test = ([task.task_id for task in env.tasks(split)] for split in ("train", "test"))
    assert (len(train), test) == (17, ["000008", "000015", "000017"])
    assert sorted(train + test) == [f"{n:06d}" for n in range(20)]
    other = play("sums", Sums)
    assert [env.reset(seed=s)[0] for s in range(5)] == [other.reset(seed=s)[0] for s in range(5)]


def test_arguments_make_the_taskset_and_may_make_another_for_test() -> None:
    env = play("sums", Sums, config={"size": 4}, test={"first": 100}, num_tasks=3)
    assert [task.prompt for task in env.tasks("train")] == ["0 + 1?", "1 + 1?", "2 + 1?"]
    assert [task.prompt for task in env.tasks("test")] == ["100 + 1?", "101 + 1?", "102 + 1?"]


def test_tools_are_called_with_the_tasks_state(shop: katgym.Env) -> None:
    assert shop.reset(seed=0)[0] == [{"role": "user", "content": "Buy a pear."}]
    assert sorted(shop.tools) == ["shop_tools_price", "shop_tools_put", "tick", "wait"]
    assert shop.tools["shop_tools_price"].parameters["required"] == ["good"]
    calls = [("shop_tools_price", {"good": "pear", "count": 3}), ("tick", {}), ("tick", {})]
    observation, *_ = shop.step(katgym.assistant("", calls))
    assert [item["content"] for item in observation] == ['{\n  "price": 6\n}', "tick\n1", "tick\n2"]
    observation, *_ = shop.step(katgym.assistant("", [("shop_tools_put", {"good": "pear"})]))
    assert observation[0]["content"].endswith("Buy a pear.')] ['pear']")
    assert shop.step("There you are.")[1:3] == (0.25, True)
    shop.reset(seed=0)
    assert shop.step("I buy nothing.")[1] == 0.0


def test_what_a_tool_raises_is_its_result(shop: katgym.Env) -> None:
    shop.reset(seed=0)
    calls = [("shop_tools_price", {"good": "car"}), ("shop_tools_price", {"good": 3})]
    observation, *_ = shop.step(katgym.assistant("", calls))
    assert "'car'" in observation[0]["content"] and "3 is not" in observation[1]["content"]
    assert shop.is_running


def test_a_call_that_is_late_says_so_and_the_episode_goes_on() -> None:
    env = play("shop", Shop, num_tasks=3, test={}, timeout_s=300.0)
    env.reset(seed=0)
    played = env.unwrapped
    wait = replace(played.tools["wait"], timeout_s=0.5)  # it alone is late
    played.tools = {**played.tools, "wait": wait}
    observation, *_ = env.step(katgym.assistant("", [("wait", {"time_s": 3600}), ("tick", {})]))
    assert "0.5 s" in observation[0]["content"] and observation[1]["content"] == "tick\n1"
    assert env.step("Enough.")[1:3] == (0.0, True)


def test_a_stop_of_the_task_ends_the_episode_and_it_is_scored(shop: katgym.Env) -> None:
    shop.reset(seed=0)
    puts = [("shop_tools_put", {"good": good}) for good in ("pear", "plum", "plum")]
    _, reward, terminated, *_ = shop.step(katgym.assistant("", puts))
    assert (reward, terminated, shop.end_reason) == (0.75, True, "is_full")


def test_an_environment_is_the_user_and_ends_the_episode() -> None:
    env = play("guess", Guess, GuessEnv, test={})
    assert env.reset(options={"task_id": "guess-3"})[0] == [{"role": "user", "content": "Guess."}]
    assert env.step("1")[0] == [{"role": "user", "content": "low"}]
    assert env.step("5")[0] == [{"role": "user", "content": "high"}]
    assert env.step("3")[1:3] == (1.0, True)
    assert env.artifacts["verifiers"] == {
        "rewards": {"won": {"score": 1.0, "weight": 1.0}}, "metrics": {"num_turns": 3.0}
    }  # fmt: skip


def test_a_limit_of_turns_ends_the_conversation_as_upstreams_does() -> None:
    env = play("guess", Guess, GuessEnv, test={}, max_turns=2)
    env.reset(options={"task_id": "guess-3"})
    env.step("1")
    _, reward, terminated, truncated, _ = env.step("2")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert env.artifacts["verifiers"]["metrics"] == {"num_turns": 2.0}


def test_what_a_reward_or_an_environment_raises_is_an_invalid_reward() -> None:
    class Broken(SumTask):
        @vf.reward
        async def fails(self, trace: vf.Trace) -> float:
            raise RuntimeError("the table is not there")

    class Sum(vf.Taskset[Broken]):
        def load(self) -> Iterator[Broken]:
            yield Broken(SumData(prompt="?", answer="1"))

    env = play("broken", Sum, test={})
    env.reset(seed=0)
    env.step("1")
    assert env.last_reward is not None and not env.last_reward.is_valid
    assert "RuntimeError: the table is not there" in env.last_reward.reason
    env = play("guess", Guess, GuessEnv, test={})
    env.reset(options={"task_id": "guess-3"})
    env.step("three")
    assert env.last_reward is not None and "invalid literal for int" in env.last_reward.reason


class BoxTask(vf.Task):
    @vf.reward
    async def made(self, runtime: vf.Runtime) -> float:
        return float((await runtime.read("made.txt")) == b"x")


class Box(vf.Taskset[BoxTask, SumsConfig]):
    def load(self) -> Iterator[BoxTask]:
        yield BoxTask(vf.TaskData(prompt="Make it.", image="debian" if self.config.first else None))


class Pair(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[Pair]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play nothing."""


class ManyEnv(vf.Env[GuessConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        for _ in range(2):
            await agents.player.run(task)


class ServerEnv(ManyEnv):
    async def start(self) -> None:
        """Bring a server up."""


released = threading.Event()
"""What `SlowTask` waits for."""


class SlowTask(vf.Task):
    async def setup(self, trace: vf.Trace) -> None:
        released.wait()  # it blocks the loop, as careless code does


class Slow(vf.Taskset[SlowTask]):
    def load(self) -> Iterator[SlowTask]:
        yield SlowTask(vf.TaskData(prompt="Wait."))


class Judged(vf.Taskset[SumTask]):
    def load(self) -> Iterator[SumTask]:
        config = vf.TaskConfig(judges=[{"id": "reference"}])
        yield SumTask(SumData(prompt="?", answer="1"), config)


@pytest.mark.parametrize(
    ("exported", "options", "text"),
    [
        ((Box,), {"config": {"first": 1}}, "needs a container"),
        ((Sums, PairEnv), {}, r"has 2 agents, \['solver', 'judge'\]"),
        ((Judged,), {}, "needs a judge, which is a model"),
        ((Sums, ServerEnv), {}, "starts servers of its own"),
        ((Shop,), {}, "never ends: say num_tasks=NUMBER"),
        ((Sums,), {"config": {"siez": 3}}, "siez"),
        ((SumTask,), {}, "exports no Taskset"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    exported: tuple[type, ...], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(katgym.UsageError, match=text):
        play("refused", *exported, **options)
    with pytest.raises(katgym.UsageError, match="no_such_module"):
        katgym.make("verifiers/Env-v0", taskset="no_such_module").tasks()


def test_what_needs_a_container_while_it_scores_or_plays_twice_is_an_invalid_reward() -> None:
    for name, exported, text in (
        ("box", (Box,), r"runtime.read"), ("many", (Sums, ManyEnv), "plays twice")
    ):  # fmt: skip
        env = play(name, *exported, test={})
        env.reset(seed=0)
        env.step("made")
        assert env.last_reward is not None and not env.last_reward.is_valid
        assert text in env.last_reward.reason


def test_an_environment_that_does_not_answer_is_infrastructure() -> None:
    env = play("slow", Slow, test={}, timeout_s=0.2)
    with pytest.raises(katgym.InfrastructureError, match=r"does not answer within 0\.2 s"):
        env.reset(seed=0)
    released.set()


def test_upstreams_own_environment_of_textarenas_games_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "corpora/words/en-basic"
    words.parent.mkdir(parents=True)
    words.write_text("pear\n")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the game asks for more words
    config = {"game": "Hangman-v0"}
    env = katgym.make("verifiers/Env-v0", taskset="textarena", config=config, num_tasks=3, test={})
    opening, _ = env.reset(seed=1)
    assert [item["role"] for item in opening] == ["system", "user"]
    assert "You have 6 tries left" in opening[1]["content"]
    assert "P   _   _   _" in env.step("[p]")[0][0]["content"]
    assert env.step("[pear]")[1:3] == (1.0, True)
    env.reset(seed=1)
    for letter in "bcdfgh":
        _, reward, terminated, *_ = env.step(f"[{letter}]")
    assert terminated and reward < 1.0


def test_the_env_holds_the_contract() -> None:
    env = play("sums", Sums, max_turns=2)
    check_env(env, num_tasks=4, checks=CONTRACT).raise_for_failures()
