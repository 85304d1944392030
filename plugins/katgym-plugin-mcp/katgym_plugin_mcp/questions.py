"""`mcp/Questions-v0`: a file of questions and answers, and the tools of an MCP server.

A line of the file is a JSON object:

    {"question": "2 and 3?", "answer": "5", "calls": [[{"name": "add", "arguments": {...}}]]}

`id` (the line's number), `split` ("test") and `calls` may be left out. `calls` is a solution: a
list of turns, each a list of calls by the server's names.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import katgym
from katgym.environment.answer import tagged_answers
from katgym.environment.messages import Action, Message, assistant, system, user
from katgym_plugin_mcp.env import McpEnv
from katgym_plugin_mcp.server_home import parse_server

HOW_TO_ANSWER = (
    "Answer the question with the tools. When you know the answer, give it once, between <answer>"
    " and </answer>, with nothing else between the tags."
)
EXAMPLE = Path(__file__).parent / "example"
"""A server and questions to try the env with."""
RELATIVE_TOLERANCE = 1e-6
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?([eE][-+]?\d+)?")


class GoldCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a question's solution."""

    name: str
    """What the server calls the tool."""
    arguments: dict[str, Any] = {}


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a file of questions."""

    question: str
    answer: str | int | float
    id: str = ""
    split: str = "test"
    calls: list[list[GoldCall]] = []


def read_questions(path: Path) -> list[Question]:
    """Return a file's questions, each with an id; `UsageError` names the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise katgym.UsageError(f"questions {str(path)!r} cannot be read: {e}") from e
    questions: list[Question] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = msgspec.json.decode(line, type=Question)
        except (msgspec.DecodeError, UnicodeEncodeError) as e:
            raise katgym.UsageError(f"{path}, line {number} is no question: {e}") from e
        questions.append(msgspec.structs.replace(question, id=question.id or str(number)))
    if not questions:
        raise katgym.UsageError(f"questions {str(path)!r} holds none; a line is a JSON object")
    return questions


class Questions(McpEnv):
    """Questions that are answered with an MCP server's tools, graded right or wrong."""

    default_max_turns = 16

    def __init__(
        self,
        *,
        server: str = "",
        questions: str = "",
        files: str = "",
        variables: str = "",
        sandbox: str = "",
        parallel: bool | str = False,
        timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        """Read the questions; without `server` and `questions` a calculator and sums.

        server: command line or URL. questions: JSON Lines. files: a folder that each episode's
        server gets a copy of. variables: names of environment variables that the server inherits,
        comma-separated. sandbox: backend of the sandbox that a command runs in, "local" for
        example; without, it runs as the user does. parallel: whether calls may overlap, or the
        tools whose calls may, comma-separated. timeout_s: wall seconds for one call.
        """
        if bool(server) != bool(questions):
            raise katgym.UsageError("server and questions go together: one is missing")
        if files and not Path(files).is_dir():
            raise katgym.UsageError(f"files {files!r} is no folder")
        self.server = server or [sys.executable, str(EXAMPLE / "server.py")]
        parse_server(self.server)
        self.files = files or None
        self.variables = [name for name in variables.split(",") if name]
        self.sandbox = sandbox
        self.parallel = parallel.split(",") if isinstance(parallel, str) else parallel
        self.timeout_s = timeout_s
        self._questions = read_questions(Path(questions or EXAMPLE / "questions.jsonl"))
        self.splits = tuple(dict.fromkeys(question.split for question in self._questions))
        super().__init__(**kwargs)

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(
                task_id=f"{split}-{item.id}",
                prompt=item.question,
                answer=str(item.answer),
                data={"calls": msgspec.to_builtins(item.calls)} if item.calls else {},
            )
            for item in self._questions
            if item.split == split
        ]

    def opening(self) -> list[Message]:
        """Return what the server says of itself, how to answer, and the question."""
        assert self.connection is not None
        parts = [self.connection.instructions, HOW_TO_ANSWER]
        return [system("\n\n".join(part for part in parts if part)), user(self.task.prompt)]

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the answer is the file's, as text or as a number."""
        return is_right(self.final_answer, self.task.answer)

    def oracle_action(self) -> Action:
        """Return the next turn of the solution, then the answer."""
        turns = self.task.data.get("calls")
        if turns is None:
            raise NotImplementedError(
                f"question {self.task.task_id!r} has no solution; 'calls' in its line is one"
            )
        if self.num_turns < len(turns):
            calls = turns[self.num_turns]
            return assistant("", [(self.tool_name(c["name"]), c["arguments"]) for c in calls])
        return f"<answer>{self.task.answer}</answer>"


def is_right(response: str, gold: str) -> bool:
    """Return whether a response gives the gold answer and no other.

    The answer is what stands between the tags, or else all of the response. Numbers are equal to
    one part in a million, other text but for case and blank space.
    """
    found = {_normalize(answer) for answer in tagged_answers(response)} or {_normalize(response)}
    if len(found) != 1:
        return False
    answer, expected = found.pop(), _normalize(gold)
    if answer == expected:
        return answer != ""
    number, wanted = _number(answer), _number(expected)
    return abs(number - wanted) <= RELATIVE_TOLERANCE * abs(wanted)


def _normalize(text: str) -> str:
    return " ".join(text.split()).casefold().rstrip(".")


def _number(text: str) -> float:
    """Return the number that a text is as a whole, `1,000.5` for example; NaN for none."""
    is_number = _NUMBER.fullmatch(text) and any(char.isdigit() for char in text)
    return float(text.replace(",", "")) if is_number else math.nan
