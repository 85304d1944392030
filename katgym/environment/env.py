"""The environment contract: a `gymnasium.Env` whose observations and actions are chat messages.

An author writes tasks, an opening, tools and scorers:

    class Shout(katgym.Env):
        def load_tasks(self, split):
            return [katgym.Task(task_id=f"{split}-{w}", prompt=f"Shout {w!r}.", answer=w.upper())
                    for w in ("hello", "world")]

        @katgym.scorer()
        def correct(self):
            return self.final_answer == self.task.answer

Not here: who plays (`policies/`), the loop (`agent_loop.py`), ids (`registry.py`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import gymnasium

from katgym.environment.failure import FAILURE_TABLE, FailureKind
from katgym.environment.messages import (
    Action,
    Message,
    as_messages,
    normalize_action,
    render_message,
    system,
)
from katgym.environment.reward import Reward, Rubric, Success, Trust
from katgym.environment.scheduler import SchedulerConfig, ToolResult, run_calls
from katgym.environment.spaces import AssistantMessage, Messages
from katgym.environment.task import SPLITS, Task, TaskSet
from katgym.environment.thinking import split_thinking, without_thinking
from katgym.environment.tool import Tool, collect_tools, tools_by_name
from katgym.errors import EpisodeStateError, UsageError, check_name
from katgym.system.sync import maybe_await, run_sync

logger = logging.getLogger(__name__)

Observation = list[Message]
Reply = str | Sequence[Message] | None
StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]
RESET_OPTIONS = ("task_id", "split", "max_turns")

_SCHEDULER = SchedulerConfig()


class Env(gymnasium.Env[Observation, Action]):
    """Base class of every katgym environment; one instance plays one episode at a time.

    `reset` and `step` are Gymnasium's; `areset` and `astep` are the same for use under asyncio.
    The observation is the list of messages that are new since the last step; the action one
    assistant message (`content`, `tool_calls`) or a `str`. A message with tool calls is answered
    by one tool message per call; one without goes to `reply`, which by default ends the episode.
    The reward arrives with the last step and is 0.0 before; `last_reward` holds it with its
    components. An invalid reward is NaN there: it is not a score. `copy.deepcopy` in mid-episode
    plays on independently, with a fork of its sandbox; close the copy, too.
    """

    splits: tuple[str, ...] = SPLITS
    """Splits this env has tasks for; the first is the default."""
    system_prompt: ClassVar[str] = ""
    """System message put before the opening; empty for none."""
    default_max_turns: ClassVar[int] = 8
    """Assistant messages an episode may have; the last one allowed is still answered."""
    success: Success = Success()
    """What counts as success, and which figure heads the results; `__init__` may set it, too."""
    levels: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names of the levels that floors are measured on, each with the arguments that make it."""
    seats: tuple[str, ...] = ("player",)
    """Who acts in this env; more than one needs `katgym.run_match`."""
    is_deterministic: ClassVar[bool] = True
    """Whether equal seeds and actions give equal observations. False where tools run programs."""
    has_fixed_opening: bool = True
    """Whether equal seeds give equal openings and tools also where `is_deterministic` is False.
    False where a server or a model makes them."""
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}  # type: ignore[misc]  # Gymnasium declares it on the instance

    plugin_version: str = ""
    """Version of the plugin that registered the env; set by `katgym.make`."""

    class_tools: ClassVar[Mapping[str, Tool]] = {}
    class_rubric: ClassVar[Rubric] = Rubric()

    _init_arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.class_tools = collect_tools(cls)
        cls.class_rubric = Rubric.of(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        env = super().__new__(cls)
        env._init_arguments = (args, kwargs)
        return env

    def __init__(
        self,
        *,
        split: str | None = None,
        max_turns: int | None = None,
        scheduler: SchedulerConfig | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env; nothing is loaded before `reset`.

        split: where `reset` takes tasks from; None is the first of `splits`.
        max_turns: assistant messages per episode, None for the env's `default_max_turns`.
        """
        if render_mode not in (None, "ansi"):
            raise UsageError(f"unknown render_mode {render_mode!r}; allowed: None, 'ansi'")
        self.render_mode = render_mode
        self.split = check_name("split", self.splits[0] if split is None else split, self.splits)
        self.max_turns = self._check_max_turns(
            self.default_max_turns if max_turns is None else max_turns
        )
        self.scheduler = scheduler or _SCHEDULER
        self.rubric = self.class_rubric
        self.observation_space = Messages()
        self.action_space: AssistantMessage = AssistantMessage()
        self.task: Task = Task(task_id="")
        self.seat = self.seats[0]
        self.messages: list[Message] = []
        self.num_turns = 0
        self.last_reward: Reward | None = None
        self.last_tool_results: Sequence[ToolResult] = ()
        self.end_reason = ""
        self.artifacts: dict[str, Any] = {}
        """What an episode leaves, a patch say, as JSON values: recorded, not shown to policies."""
        self.is_running = False
        """Whether an episode is under way: reset has begun and no reward was given yet."""
        self.tools = self.class_tools
        self._is_terminated = False
        self._episode_max_turns = self.max_turns
        self._task_sets: dict[str, TaskSet] = {}

    # ---- what an author writes

    def load_tasks(self, split: str) -> TaskSet | Sequence[Task]:
        """Return the tasks of `split`, in a fixed order; called once per split and instance."""
        raise NotImplementedError(f"{type(self).__name__} defines no load_tasks(split)")

    async def setup(self) -> None:
        """Prepare the episode of `self.task`, drawing from `self.np_random`; before `opening`."""

    def opening(self) -> str | Sequence[Message] | Awaitable[str | Sequence[Message]]:
        """Return what the policy sees first, by default the task's prompt as a user message."""
        return self.task.prompt

    def reply(self, message: Message) -> Reply | Awaitable[Reply]:
        """Answer a message without tool calls; None ends the episode (the default).

        Its content is the answer, without thinking that stands in its text (`thinking.py`).
        May be `async def`. To end the episode *and* say something, call `self.finish()`.
        """
        return None

    async def after_tools(self, results: Sequence[ToolResult]) -> Sequence[Message]:
        """Return messages to add behind a turn's tool results; none by default."""
        return ()

    def oracle_action(self) -> Action:
        """Return the gold next action for the current state; the `oracle` policy plays it."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot play its own solution: it defines no oracle_action()"
        )

    def oracle_minimum(self) -> float | None:
        """Return the least the oracle earns; None (the default) is the rubric's maximum.

        For envs with an opponent who can hold even the best play to less.
        """
        return None

    def random_action(self, rng: random.Random) -> Action:
        """Return a random action that makes sense here; by default one of the action space."""
        space = AssistantMessage(self.tools, seed=rng.getrandbits(32))
        return space.sample()

    def reward_trust(self) -> tuple[Trust, str] | None:
        """Return how far the verdict on the ended episode can be trusted, and why in one line.

        By default that is the task's level, without a reason. Asked for a valid reward alone.
        """
        return None if self.task.trust is None else (self.task.trust, "")

    async def teardown(self) -> None:
        """Release what `setup` acquired; called once per episode, also after a failure."""

    # ---- what an author may call

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What the policy may call, by name; what `setup` assigns, until the episode ends."""
        return self.action_space.tools

    @tools.setter
    def tools(self, tools: Mapping[str, Tool]) -> None:
        self.action_space.tools = tools_by_name(tools.values())
        if not self.is_running:
            self._own_tools = tools

    def finish(self, reason: str = "") -> None:
        """End the episode with the current step; for tools, `reply` and `after_tools`."""
        self._is_terminated = True
        self.end_reason = self.end_reason or reason

    @property
    def final_answer(self) -> str:
        """Answer of the last assistant message without tool calls, stripped; "" if none.

        That is its content without the thinking in it; thinking that never ends is no answer.
        """
        for message in reversed(self.messages):
            if message["role"] == "assistant" and not message.get("tool_calls"):
                return split_thinking(message["content"])[1].strip()
        return ""

    def tasks(self, split: str | None = None) -> TaskSet:
        """Return the tasks of a split (default: this env's), loaded on first use."""
        name = check_name("split", self.split if split is None else split, self.splits)
        if name not in self._task_sets:
            loaded = self.load_tasks(name)
            if not isinstance(loaded, TaskSet):
                loaded = TaskSet(loaded, split=name)
            if len(loaded) == 0:
                raise UsageError(f"{type(self).__name__} has no tasks in split {name!r}")
            self._task_sets[name] = loaded
        return self._task_sets[name]

    # ---- Gymnasium, asynchronous and synchronous

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode: `seed` alone fixes the task and everything random in it.

        options: `task_id` (a task of the split), `split`, `max_turns`. Other keys raise
        `UsageError`.
        """
        if seed is not None and (type(seed) is not int or seed < 0):
            raise UsageError(f"seed is an int >= 0 or None, got {seed!r}")
        options = dict(options or {})
        for key in options:
            check_name("reset option", key, RESET_OPTIONS)
        if component := self.success.component:
            check_name("component of success", component, [s.name for s in self.rubric.scorers])
        if self.is_running:
            await self._end_episode()
        gymnasium.Env.reset(self, seed=seed)
        split = check_name("split", options.get("split") or self.split, self.splits)
        chosen = options.get("max_turns")
        turns = self.max_turns if chosen is None else chosen
        self._episode_max_turns = self._check_max_turns(turns)
        tasks = self.tasks(split)
        task_id = options.get("task_id")
        drawn = int(self.np_random.integers(len(tasks)))
        self.task = tasks[drawn] if task_id is None else tasks.get(task_id)
        self.messages = []
        self.num_turns = 0
        self.last_reward = None
        self.last_tool_results = ()
        self.end_reason = ""
        self.artifacts = {}
        self._is_terminated = False
        self.is_running = True
        self.seat = self.seats[0]
        try:
            await self.setup()
            opening = await maybe_await(self.opening())
        except BaseException:
            try:  # what is left of the episode; the failure itself is what the caller hears of
                await self._end_episode()
            except Exception:
                logger.warning("teardown after a failed setup failed too", exc_info=True)
            raise
        observation = [system(self.system_prompt)] if self.system_prompt else []
        observation += as_messages(opening)
        self.messages += observation
        return observation, self._info()

    async def astep(self, action: Action) -> StepResult:
        """Play one assistant message; see the class for what comes back."""
        if not self.is_running:
            raise EpisodeStateError(
                "call reset() first: there is no running episode"
                if self.last_reward is None
                else "the episode has ended; call reset() to start another"
            )
        message = normalize_action(action)
        self.messages.append(message)
        self.num_turns += 1
        self.last_tool_results = ()
        observation: Observation = []
        calls = message.get("tool_calls")
        if calls:
            self.last_tool_results = await run_calls(self.tools, calls, self.scheduler, owner=self)
            observation += [result.to_message() for result in self.last_tool_results]
            observation += await self.after_tools(self.last_tool_results)
        else:
            answer = await maybe_await(self.reply(without_thinking(message)))
            if answer is None:
                self.finish("answered")
            else:
                observation += as_messages(answer)
        self.messages += observation
        truncated = False
        if not self._is_terminated and self.num_turns >= self._episode_max_turns:
            self.end_reason = str(FailureKind.MAX_TURNS)
            # Gymnasium's checker allows no truncation on the first step: one turn is the task.
            truncated = self._episode_max_turns > 1
            self._is_terminated = not truncated
        value = 0.0
        if self._is_terminated or truncated:
            kind = FailureKind.MAX_TURNS if truncated else None
            value = (await self._grade(kind)).value_or_nan()
        return observation, value, self._is_terminated, truncated, self._info()

    async def atruncate(self, kind: FailureKind) -> Reward:
        """End a running episode because of a budget outside the env; return its reward."""
        if not self.is_running:
            raise EpisodeStateError("there is no running episode to truncate")
        self.end_reason = str(kind)
        return await self._grade(kind)

    async def _grade(self, kind: FailureKind | None) -> Reward:
        try:
            reward = await self.rubric.score(self)
            if kind is not None and reward.is_valid and reward.failure_kind is None:
                assert FAILURE_TABLE[kind].is_graded
                reward = replace(reward, failure_kind=kind)
            if reward.is_valid and (told := self.reward_trust()) is not None:
                reward = replace(reward, trust=told[0], trust_reason=told[1])
            self.last_reward = reward
        finally:
            await self._end_episode()
        return reward

    async def aclose(self) -> None:
        """End the running episode, if any; may be called twice."""
        if self.is_running:
            await self._end_episode()

    async def _end_episode(self) -> None:
        self.is_running = False
        try:
            await self.teardown()
        finally:
            self.tools = self._own_tools

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; `areset` for callers without an event loop."""
        return run_sync(self.areset(seed=seed, options=options))

    def step(self, action: Action) -> StepResult:
        """Play one assistant message; `astep` for callers without an event loop."""
        return run_sync(self.astep(action))

    def close(self) -> None:
        """End the running episode, if any; may be called twice."""
        if self.is_running:
            run_sync(self.aclose())

    def render(self) -> str:
        """Return the episode so far as text (`render_mode="ansi"`)."""
        return "\n\n".join(render_message(message) for message in self.messages)

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """The keyword arguments this env was made with, those that are JSON values."""
        plain = (str, int, float, bool, type(None), list, tuple, dict)
        return {k: v for k, v in self._init_arguments[1].items() if isinstance(v, plain)}

    def seat_rewards(self) -> Mapping[str, Reward]:
        """Return each seat's reward, 0.0 in mid-episode; envs with several seats override it."""
        if self.last_reward is None and not self.is_running:
            raise EpisodeStateError("there is no episode yet, and no reward; call reset()")
        return dict.fromkeys(self.seats, self.last_reward or Reward(value=0.0))

    def clone(self) -> Self:
        """Return a fresh env made with the same arguments, sharing the loaded tasks."""
        args, kwargs = self._init_arguments
        copy = type(self)(*args, **kwargs)
        copy.spec = self.spec
        copy.plugin_version = self.plugin_version
        copy._task_sets = self._task_sets
        return copy

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "task_id": self.task.task_id,
            "split": self.task.split,
            "num_turns": self.num_turns,
        }
        if len(self.seats) > 1:
            info["seat"] = self.seat
        if self.last_reward is not None:
            info["reward"] = self.last_reward.to_json()
            info["end_reason"] = self.end_reason
        return info

    @staticmethod
    def _check_max_turns(max_turns: int) -> int:
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise UsageError(f"max_turns is an int >= 1, got {max_turns!r}")
        return max_turns
