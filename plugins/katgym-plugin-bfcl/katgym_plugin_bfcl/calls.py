"""Episodes of one message: the calls that answer a question, or none where no function fits.

Upstream's checker decides; what makes it crash is wrong. Silence is not paid: where no function
fits, the answer says so in one sentence.

Not here: conversations (`multi_turn.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action, Message, assistant, system
from katgym.environment.task import plain_text
from katgym.environment.tool import callable_name
from katgym_plugin_bfcl.benchmark import Benchmark
from katgym_plugin_bfcl.gold import gold_arguments
from katgym_plugin_bfcl.schemas import LANGUAGES, tool_spec
from katgym_plugin_bfcl.upstream import MODEL, checker

CHECKER_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What the checker raises for arguments of a shape it does not expect; `ValueError` as well."""
DECLINED = "No function fits."
HOW_TO_ANSWER = (
    "Answer with the calls of functions that do what the user asks, all of them in one message. If"
    " none of the functions can do it, or it lacks what they need, make no call and answer only:"
    f" {DECLINED}"
)


class Calls(Benchmark):
    """Questions written for the benchmark.

    Tasks with the same question, or the same functions, are in the same split.
    """

    default_max_turns = 1
    categories: ClassVar[tuple[str, ...]] = (
        *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel"),
        *("parallel_multiple", "irrelevance"),
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rubric = katgym.Rubric([*self.class_rubric.scorers, *map(_metric, self.categories)])

    @staticmethod
    def data_of(entry: Mapping[str, Any]) -> dict[str, Any]:
        (messages,), functions = entry["question"], entry["function"]
        group = " ".join(sorted({function["name"] for function in functions}))
        return {"functions": functions, "messages": messages, "group": group}

    @staticmethod
    def kinship(task: katgym.Task) -> tuple[str, str]:
        return plain_text(task.prompt), task.data["group"]

    async def setup(self) -> None:
        data = self.task.data
        self.language = next((k for k in LANGUAGES if data["category"].endswith(f"_{k}")), "python")
        self.tools = katgym.tools_by_name(
            katgym.Tool.from_schema(tool_spec(function, self.language), _accept, parallel=True)
            for function in data["functions"]
        )

    def opening(self) -> list[Message]:
        given: list[Message] = copy.deepcopy(self.task.data["messages"])
        told = [m["content"] for m in given if m["role"] == "system"]
        others = [m for m in given if m["role"] != "system"]
        return [system("\n\n".join([*told, HOW_TO_ANSWER])), *others]

    async def after_tools(self, results: Sequence[katgym.ToolResult]) -> Sequence[Message]:
        self.finish("called")
        return ()

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the calls are the right ones, and all of them; no call where none fits."""
        calls = [call["function"] for m in self.messages for call in m.get("tool_calls", ())]
        data = self.task.data
        if data["category"].endswith("irrelevance"):
            return not calls and plain_text(self.final_answer) == plain_text(DECLINED)
        try:
            found = checker().ast_checker(
                data["functions"],
                [{self.tools[c["name"]].source_name: json.loads(c["arguments"])} for c in calls],
                self.task.answer,
                checker().Language(self.language),
                data["category"],
                MODEL,
            )
        except (*CHECKER_ERRORS, ValueError):
            return False
        return found["valid"] is True

    def oracle_action(self) -> Action:
        functions = {f["name"]: f for f in self.task.data["functions"]}
        calls = [
            (callable_name(name), gold_arguments(functions[name], options, self.language))
            for call in self.task.answer or ()
            for name, options in call.items()
        ]
        return assistant("" if calls else DECLINED, calls)


class LiveCalls(Calls):
    """Questions that users of a hosted demo asked."""

    categories = (
        *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
        "live_irrelevance",
    )


def _accept(**arguments: Any) -> str:
    return "The call is recorded."


def _metric(category: str) -> katgym.Scorer:
    def share(env: Calls) -> bool | None:
        return env.correct() if env.task.data["category"] == category else None

    return katgym.Scorer(name=category, fn=share, weight=0.0)
