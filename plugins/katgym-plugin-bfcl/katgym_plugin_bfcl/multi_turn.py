"""Conversations: a user's requests in turn, over services that keep their state.

After each request the services have to be as the gold calls leave them, and what those calls
answered has to be among the answers so far. A message without calls ends the work on a request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action, Message, assistant, user
from katgym.environment.task import plain_text
from katgym_plugin_bfcl.benchmark import Benchmark
from katgym_plugin_bfcl.schemas import tool_spec
from katgym_plugin_bfcl.services import Services, is_fulfilled
from katgym_plugin_bfcl.upstream import read_lines

MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
MAX_STEPS = 20
"""Messages with calls for one request; upstream ends the conversation there, too."""

NUM_AT_ONCE = 16
"""Calls in one message of the oracle."""


class MultiTurn(Benchmark):
    """Upstream's `multi_turn_*` categories; the four variants of a conversation share a split."""

    default_max_turns = 100
    system_prompt: ClassVar[str] = (
        "Fulfil each request with the tools. A message without tool calls says that you can do no"
        " more for the request; the next one follows."
    )
    categories: ClassVar[tuple[str, ...]] = ("base", "miss_func", "miss_param", "long_context")

    prefix = "multi_turn_"

    @staticmethod
    def data_of(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "classes": entry["involved_classes"],
            "config": entry["initial_config"],
            "missed": entry.get("missed_function", {}),
            "requests": entry["question"],
        }

    @staticmethod
    def kinship(task: katgym.Task) -> tuple[str, str]:
        first = "\n".join(m["content"] for m in task.data["requests"][0])
        return task.task_id.rpartition("_")[2], plain_text(first)

    async def setup(self) -> None:
        data = self.task.data
        is_long = data["category"] == "long_context"
        self.services, self.gold = (
            Services(data["classes"], data["config"], is_long=is_long) for _ in range(2)
        )
        self.results: list[str] = []
        self.num_passed = self.num_steps = self.request = 0
        self._all_tools = {t.name: t for name in data["classes"] for t in _tools(name)}

    def opening(self) -> list[Message]:
        return self._ask()

    def reply(self, message: Message) -> list[Message] | None:
        gold = self.task.answer[self.request]
        answers = self.gold.run(gold)
        self.num_passed += not gold or (
            self.num_steps > 0
            and is_fulfilled(self.services, self.gold, self.results, answers, self.request)
        )
        self.request += 1
        self.num_steps = 0
        if self.num_passed < self.request or self.request == len(self.task.answer):
            return None
        return self._ask()

    def _ask(self) -> list[Message]:
        """Return the current request, and offer its tools: some are held back until later."""
        missed = self.task.data["missed"]
        late = {n for turn, names in missed.items() if int(turn) > self.request for n in names}
        self.tools = {k: tool for k, tool in self._all_tools.items() if k not in late}
        if str(self.request) in missed:
            return [user(MORE_FUNCTIONS)]
        messages: list[Message] = copy.deepcopy(self.task.data["requests"][self.request])
        return messages

    async def after_tools(self, results: Sequence[katgym.ToolResult]) -> Sequence[Message]:
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            self.finish("too many steps for one request")
        return ()

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether every request was fulfilled."""
        return self.num_passed == len(self.task.answer)

    def oracle_action(self) -> Action:
        calls = self.task.answer[self.request]
        left = calls[self.num_steps * NUM_AT_ONCE :][:NUM_AT_ONCE]
        if not left:
            return "Done." if calls else "I cannot do this with what I have."
        return assistant("", [self.gold.arguments(call) for call in left])


@lru_cache(maxsize=16)
def _tools(class_name: str) -> list[katgym.Tool]:
    from bfcl_eval.constants import executable_backend_config as backend

    file = backend.MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
    functions = read_lines(f"multi_turn_func_doc/{file}")
    return [katgym.Tool.from_schema(tool_spec(f), _caller(f["name"])) for f in functions]


def _caller(name: str) -> Callable[..., str]:
    def call(self: MultiTurn, /, **arguments: object) -> str:
        result = self.services.call(name, **arguments)
        self.results.append(result)
        return result

    return call
