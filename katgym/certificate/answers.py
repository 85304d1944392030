"""Form of an env's answers, learned from its oracle, and the options that a prompt lists.

Not here: which answer a player gives (`cheap_policies.py`, `guesser.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from katgym.environment.messages import Action, Message, assistant, normalize_action

MIN_SHARE = 0.5
"""Share of the oracle's answers that a form has to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How a value becomes an action: text around it, or the one argument of a tool.

    Example:
        AnswerForm(prefix="Answer: ")        # a message
        AnswerForm(tool="open_chest", argument="number", is_integer=True)
    """

    prefix: str = ""
    suffix: str = ""
    tool: str = ""
    argument: str = ""
    is_integer: bool = False

    def wrap(self, value: str) -> Action:
        """Return the action that answers with a value."""
        if not self.tool:
            return f"{self.prefix}{value}{self.suffix}"
        is_number = self.is_integer and re.fullmatch(r"-?[0-9]{1,18}", value)
        return assistant("", [(self.tool, {self.argument: int(value) if is_number else value})])

    def unwrap(self, action: Action) -> str | None:
        """Return the value an action answers with; None if it has another form."""
        message = normalize_action(action)
        calls = message.get("tool_calls") or []
        if self.tool:
            if not calls or calls[-1]["function"]["name"] != self.tool:
                return None
            value = _arguments(message).get(self.argument)
            return None if value is None else str(value)
        text = message["content"]
        if calls or not (text.startswith(self.prefix) and text.endswith(self.suffix)):
            return None
        return text[len(self.prefix) : len(text) - len(self.suffix)]


def learn_form(examples: Iterable[tuple[Message, Any]]) -> AnswerForm:
    """Return the form of last actions of the oracle, each with its task's answer.

    Where the answer does not stand in the action, the whole action is taken for it.
    """
    found: Counter[AnswerForm] = Counter()
    num = 0
    for message, answer in examples:
        num += 1
        text, gold = message["content"], str(answer)
        arguments = _arguments(message)
        if message.get("tool_calls"):
            if len(arguments) == 1:
                (name, value) = next(iter(arguments.items()))
                tool = message["tool_calls"][-1]["function"]["name"]
                is_integer = type(value) is int
                found[AnswerForm(tool=tool, argument=name, is_integer=is_integer)] += 1
        elif gold and (place := text.rfind(gold)) >= 0:
            found[AnswerForm(prefix=text[:place], suffix=text[place + len(gold) :])] += 1
    form, count = found.most_common(1)[0] if found else (AnswerForm(), 0)
    return form if count >= MIN_SHARE * num else AnswerForm()


def _arguments(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    found = json.loads(calls[-1]["function"]["arguments"] or "{}") if calls else {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers that a prompt lists; `label` is "" where it has none."""

    label: str
    text: str

    def is_value(self, value: str) -> bool:
        """Return whether a value names this option by label or text."""
        return fold(value) in {fold(self.label), fold(self.text)} - {""}


_LABELLED = r"(?:^|(?<=\s))\(?({0})[).:\]]\s+(.+?)(?=\s+\(?{0}[).:\]]\s|\s*$)"
_LETTERED = re.compile(_LABELLED.replace("{0}", "[A-Za-z]"))
_NUMBERED = re.compile(_LABELLED.replace("{0}", "[0-9]{1,2}"))
_BULLETED = re.compile(r"^\s*[-*•]\s+(.+?)\s*$", re.MULTILINE)
_SEPARATOR = re.compile(r"\s*(?:,\s*(?:or|and)\s|\||,|;|/|\s(?:or|and)\s)\s*")
_LISTED = re.compile(
    r"\b(?:one of|options?|choices?|candidates?|legal (?:moves?|actions?)|possible answers?"
    r"|choose(?: from| between)?|among|either)\b[^:\n.]{0,40}?[:\s]\s*"
    r"([^\n:]*?(?:,|\||;|/|\bor\b)[^\n:]*)",
    re.IGNORECASE,
)


def find_options(prompt: str) -> list[Option]:
    """Return the options that a prompt lists, in its order; none if it lists none.

    Lettered and numbered lists (also in one line), bullets, and `one of: red, green or blue`.
    """
    for pattern, first in ((_LETTERED, "Aa"), (_NUMBERED, "01")):
        found = [
            Option(*match)
            for line in prompt.splitlines()
            for match in pattern.findall(line.strip())
        ]
        labels = [option.label for option in found]
        if len(found) > 1 and labels[0] in first and len(set(labels)) == len(labels):
            return found
    bullets = [Option("", text) for text in _BULLETED.findall(prompt)]
    if len(bullets) > 1:
        return bullets
    for listed in _LISTED.findall(prompt):
        parts = _SEPARATOR.split(listed.rstrip(". ?)"))
        parts = [part.strip(" '\"`()[]") for part in parts]
        if len(parts) > 1 and all(parts) and len(set(parts)) == len(parts):
            return [Option("", part) for part in parts]
    return []


def fold(text: str) -> str:
    """Return a text without what tells no two apart: case, blank space, marks around words."""
    return " ".join(re.findall(r"[^\W_]+|[-+.]\d+", text.casefold()))
