"""Tools that come as JSON Schemas, and tools that a task brings along."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

import katgym
from katgym import Tool
from katgym.environment.messages import assistant

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
       "required": ["a", "b"]}  # fmt: skip


class Bench(katgym.Env):
    """Each task has tools of its own; one in `broken` has two of one name."""

    splits = ("test", "broken")
    system_prompt = "Call what there is."

    @katgym.tool
    def note(self, text: str) -> str:
        """Write something down."""
        return f"noted {text}"

    def load_tasks(self, split: str) -> list[katgym.Task]:
        names = ["math.add", "text.join"] if split == "test" else ["a.b"]
        return [katgym.Task(task_id=f"{split}-{name}", prompt=name) for name in names]

    async def setup(self) -> None:
        spec = {"name": self.task.prompt, "description": "It adds.", "inputSchema": ADD}
        made = [Tool.from_schema(spec, self.add, parallel=True)]
        if self.split == "broken":
            made.append(Tool.from_schema({**spec, "name": "a_b"}, self.add))
        self.tools = {**self.class_tools, **katgym.tools_by_name(made)}

    async def add(self, a: int, b: int) -> str:
        return f"{self.task.prompt}: {a + b}"

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == "5"


def play(env: katgym.Env, task_id: str, calls: list[tuple[str, dict[str, int]]]) -> katgym.Rollout:
    script = katgym.testing.ScriptedPolicy([assistant("", calls), assistant("5")])
    return asyncio.run(katgym.run_rollout(env, script, seed=0, task_id=task_id))


def test_every_description_of_a_function_makes_the_same_tool(subtests: pytest.Subtests) -> None:
    told = {"name": "add", "description": "It adds."}
    specs: dict[str, dict[str, Any]] = {
        "openai": {"type": "function", "function": {**told, "parameters": ADD}},
        "responses": {"type": "function", **told, "parameters": ADD},
        "mcp": {**told, "inputSchema": ADD},
        "anthropic": {**told, "input_schema": ADD},
    }
    for name, spec in specs.items():
        with subtests.test(form=name):
            made = Tool.from_schema(spec, lambda a, b: a + b, timeout_s=2)
            assert made.to_mcp() == {"name": "add", "description": "It adds.", "inputSchema": ADD}
            assert (made.source_name, made.timeout_s, made.parallel) == ("add", 2, False)
            assert made.argument_error({"a": 1}) == "'b' is a required property"
            assert made.fn(**made.convert({"a": 1, "b": 2})) == 3
    assert Tool.from_schema({"name": "now"}, lambda: "noon").argument_error({}) is None


def test_names_that_policies_cannot_call_are_mapped_and_kept() -> None:
    names = {
        "files.read": "files_read",
        "größe/x y": "gr__e_x_y",
        "reset": "reset_",
        "x" * 64: "x" * 64,
        "x" * 65: f"{'x' * 55}_9537c5fd",
    }
    made = [Tool.from_schema({"name": name}, print) for name in names]
    assert {one.source_name: one.name for one in made} == names
    long = "server." * 12  # what is long and alike stays apart
    made = [Tool.from_schema({"name": long + end}, print) for end in ("read", "write")]
    assert len(katgym.tools_by_name(made)) == 2


def test_what_describes_no_tool_is_refused(subtests: pytest.Subtests) -> None:
    typed = {"type": "object", "properties": 3}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inputSchema": ADD}, "a tool's description has a 'name'"),
        ({"name": ""}, "a tool's description has a 'name'"),
        ({"function": "add"}, "a tool's description has a 'name'"),
        ({"name": "f", "parameters": {"type": "string"}}, "tool 'f': its JSON Schema is of type"),
        ({"name": "f", "parameters": [1]}, "tool 'f': its JSON Schema is of type"),
        ({"name": "f", "parameters": typed}, "no valid JSON Schema"),
    ]
    for spec, text in cases:
        with subtests.test(spec=spec), pytest.raises(katgym.UsageError, match=text):
            Tool.from_schema(spec, print)


def test_a_tasks_tools_are_offered_called_and_recorded() -> None:
    env = Bench()
    both = [("math_add", {"a": 2, "b": 3}), ("math_add", {"a": 1, "b": 1})]
    rollout = play(env, "test-math.add", both)
    assert rollout.reward.value == 1.0
    assert [tool["function"]["name"] for tool in rollout.tools] == ["note", "math_add"]
    results = [message["content"] for message in rollout.messages if message["role"] == "tool"]
    assert results == ["math.add: 5", "math.add: 2"]
    assert list(env.tools) == list(env.action_space.tools) == ["note"]
    other = play(env, "test-text.join", both[:1])
    (refused,) = [message["content"] for message in other.messages if message["role"] == "tool"]
    assert "'math_add'" in refused and "text_join" in refused


def test_the_action_space_is_that_of_the_episode() -> None:
    env = Bench()
    space = env.action_space
    env.reset(seed=0, options={"task_id": "test-text.join"})
    assert env.action_space is space and list(space.tools) == ["note", "text_join"]
    space.seed(0)
    called = {call["function"]["name"] for _ in range(30)
              for call in space.sample().get("tool_calls", ())}  # fmt: skip
    assert called == {"note", "text_join"}
    env.reset(seed=0, options={"task_id": "test-math.add"})
    assert list(space.tools) == ["note", "math_add"]
    env.close()
    assert list(space.tools) == ["note"]


def test_a_copy_in_mid_episode_has_the_episodes_tools() -> None:
    env = Bench()
    env.reset(seed=0, options={"task_id": "test-text.join"})
    other = copy.deepcopy(env)
    env.close()
    assert list(other.tools) == ["note", "text_join"]
    observation, *_ = other.step(assistant("", [("text_join", {"a": 1, "b": 1})]))
    assert observation[0]["content"] == "text.join: 2"
    other.close()
    assert list(other.tools) == ["note"]


def test_two_names_that_are_mapped_to_one_end_the_setup_and_leave_the_env_as_it_was() -> None:
    env = Bench(split="broken")
    with pytest.raises(katgym.UsageError, match=r"two tools are named 'a_b' \('a.b', 'a_b'\)"):
        env.reset(seed=0)
    assert list(env.tools) == ["note"] and not env.is_running


def test_a_function_with_self_is_given_the_env_that_plays() -> None:
    def who(self: katgym.Env) -> str:
        return type(self).__name__

    env = Bench()
    env.tools = katgym.tools_by_name([Tool.from_schema({"name": "who.is"}, who)])
    env.setup = Bench.__mro__[1].setup.__get__(env)  # type: ignore[method-assign]
    env.reset(seed=0)
    observation, *_ = env.step(assistant("", [("who_is", {})]))
    assert observation[0]["content"] == "Bench"
    env.close()
    assert list(env.tools) == ["who_is"]
