r"""Finds the final answer in a message: the last `\boxed{}`, or an `Answer:` or `####` line.

Not here: what the answer means (`answers.py`). Thinking text must be cut off by the caller: a box
in it counts like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from katgym_envs.math.verifier.judge import judge_exactly

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_LINE = re.compile(
    r"^[ \t>*_#-]*(?:(?:the[ \t]+)?(?:final[ \t]+)?answer(?:[ \t]+is)?[ \t*]*[:=]|####)"
    r"[ \t*]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a message commits to.

    `answer` is the last answer given, None without any. `is_hedged` is True when the message gives
    several that differ, which earns nothing.

    Example:
        Extraction(answer="7", is_hedged=False)
    """

    answer: str | None
    is_hedged: bool = False


def extract_final_answer(text: str) -> Extraction:
    r"""Return the message's answer.

    Example:
        >>> extract_final_answer(r"so \boxed{7}, or \boxed{8}")
        Extraction(answer='8', is_hedged=True)
    """
    answers = _boxes(text) or [
        match[1].strip().rstrip("*").strip() for match in _LINE.finditer(text)
    ]
    if not answers:
        return Extraction(None)
    last = answers[-1]
    for other in answers[:-1]:
        if "".join(other.split()) != "".join(last.split()):
            verdict = judge_exactly(other, last)
            if verdict is None or not verdict.is_correct:
                return Extraction(last, is_hedged=True)
    return Extraction(last)


def _boxes(text: str) -> list[str]:
    """Return the contents of all closed boxes that are in no other closed box, in one pass."""
    spans: list[tuple[int, int]] = []
    open_braces: list[int | None] = []
    for match in _BRACE.finditer(text):
        if match["box"]:
            open_braces.append(match.end())
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, match.start()))
    return [box for start, end in spans if (box := text[start:end].strip())]
