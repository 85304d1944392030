"""Spaces over messages: members, sampling, and Gymnasium's vector envs with them."""

from __future__ import annotations

import functools
import random
import warnings
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import gymnasium
import msgspec
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.messages import assistant, user
from katgym.environment.scheduler import check_call
from katgym.environment.spaces import AssistantMessage, Messages, sample_arguments
from katgym.environment.tool import Tool
from katgym.testing import EchoEnv

SURROGATE = "a\ud800"


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Tree:
    name: str
    left: Tree | None = None


def everything(
    text: str,
    count: int,
    ratio: Annotated[float, msgspec.Meta(ge=0.25, le=0.5)],
    positive: Annotated[int, msgspec.Meta(gt=0, lt=3)],
    negative: Annotated[float, msgspec.Meta(lt=-2.5)],
    large: Annotated[int, msgspec.Meta(ge=1000)],
    flag: bool,
    size: Size,
    mode: Literal["a", "b"],
    tree: Tree,
    pair: tuple[int, str],
    several: set[int],
    many: Annotated[list[int], msgspec.Meta(min_length=5)],
    named: Annotated[str, msgspec.Meta(min_length=30, max_length=31)],
    table: dict[str, int],
    anything: Any,
    maybe: int | None = None,
) -> None: ...


EVERYTHING = Tool.from_function(everything)


@given(st.integers(0, 2**32))
def test_sampled_arguments_fit_their_schema(seed: int) -> None:
    arguments = sample_arguments(EVERYTHING.parameters, random.Random(seed))
    assert EVERYTHING.argument_error(arguments) is None
    EVERYTHING.convert(arguments)


def test_samples_are_members_valid_unicode_and_varied() -> None:
    env = EchoEnv()
    space = AssistantMessage({**env.tools, "everything": EVERYTHING}, seed=0)
    samples = [space.sample() for _ in range(300)]
    assert all(space.contains(s) for s in samples)
    assert any(not ch.isascii() for s in samples for ch in s["content"])
    calls = [c for s in samples for c in s.get("tool_calls", ())]
    assert {c["function"]["name"] for c in calls} == {"echo", "note", "everything"}
    assert all(isinstance(check_call(space.tools, c)[0], Tool) for c in calls)
    messages = Messages(seed=0)
    lists = [messages.sample() for _ in range(100)]
    assert all(messages.contains(m) for m in lists)
    assert {len(m) for m in lists} == {0, 1, 2}


def test_samples_repeat_by_seed_and_take_no_mask() -> None:
    for make in (Messages, functools.partial(AssistantMessage, EchoEnv().tools)):
        one, two, other = make(seed=3), make(seed=3), make(seed=4)
        draws = [[space.sample() for _ in range(20)] for space in (one, two, other)]
        assert draws[0] == draws[1] != draws[2]
        one.seed(7)
        two.seed(7)
        assert one.sample() == two.sample()
    without_tools = AssistantMessage(seed=1)
    assert all("tool_calls" not in without_tools.sample() for _ in range(20))
    masked: list[dict[str, Any]] = [{"mask": 1}, {"probability": 1}]
    for options in masked:
        with pytest.raises(ValueError, match="takes no mask and no probability"):
            Messages().sample(**options)


def test_members_are_lists_of_messages_or_actions() -> None:
    lists: list[tuple[object, bool]] = [
        ([], True),
        ((), True),
        ([user("hi ∞")], True),
        ([{"role": "tool", "content": "", "tool_call_id": "x"}], True),
        ([user(SURROGATE)], False),
        ([{"role": "developer", "content": ""}], False),
        ([{"role": "user"}], False),
        ([{"role": "user", "content": None}], False),
        (["hi"], False),
        ("hi", False),
        (user("hi"), False),
        (None, False),
        (3, False),
    ]
    found = [(value, Messages().contains(value), value in Messages()) for value, _ in lists]
    assert found == [(value, is_member, is_member) for value, is_member in lists]
    actions: list[tuple[object, bool]] = [
        ("hi", True),
        ("", True),
        (SURROGATE, False),
        (assistant("a", [("echo", {})]), True),
        ({"content": None}, True),
        ({"content": "a", "tool_calls": None}, True),
        ({"content": SURROGATE}, False),
        ({"content": 3}, False),
        ({"content": "", "tool_calls": ["x"]}, False),
        ({"content": "", "tool_calls": "x"}, False),
        (user("a"), False),
        ([assistant("a")], False),
        (None, False),
        (b"a", False),
    ]
    assert [(value, AssistantMessage().contains(value)) for value, _ in actions] == actions


def test_spaces_are_compared_printed_and_written_as_json() -> None:
    space = Messages(seed=0)
    samples = [space.sample() for _ in range(5)]
    assert space.from_jsonable(space.to_jsonable(samples)) == samples
    tools = EchoEnv().tools
    assert Messages() == Messages(seed=3)
    assert Messages() != AssistantMessage()
    assert AssistantMessage(tools) == AssistantMessage(EchoEnv().tools)
    assert AssistantMessage(tools) != AssistantMessage({"echo": tools["echo"]})
    assert hash(AssistantMessage(tools)) == hash(AssistantMessage(dict(tools)))
    assert repr(AssistantMessage(tools)) == "AssistantMessage(tools=['echo', 'note'])"
    assert repr(Messages()) == "Messages()"
    assert not Messages().is_np_flattenable


def test_gymnasium_checker_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(EchoEnv(render_mode="ansi"), skip_render_check=True)


@pytest.mark.parametrize("is_async", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_vector_envs_play_echo(is_async: bool) -> None:
    makers = [EchoEnv] * 3
    vector: gymnasium.vector.VectorEnv[Any, Any, Any]
    if is_async:
        vector = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=False, context="spawn")
    else:
        vector = gymnasium.vector.SyncVectorEnv(makers)
    try:
        observations, _ = vector.reset(seed=5)
        expected = [EchoEnv().reset(seed=5 + i)[0] for i in range(3)]
        assert list(observations) == expected
        words = [o[0]["content"].split("'")[1] for o in expected]
        actions = ("nö 🙂", assistant("", [("echo", {"text": "π"})]), words[2])
        observations, rewards, terminated, truncated, _ = vector.step(actions)
        assert observations[0] == [user("nö 🙂")]
        assert observations[1][0]["content"] == "π"
        assert list(rewards) == [0.0, 0.0, 1.0]
        assert list(terminated) == [False, False, True]
        assert list(truncated) == [False] * 3
    finally:
        vector.close()
