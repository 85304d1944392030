r"""Finds the final answer in a message: the last box, or a line or sentence that gives the answer.

    \boxed{7}    \fbox{7}    \boxed 7    Answer: 7    #### 7    Therefore, the answer is $7$.

Not here: what the answer means (`answers.py`). Thinking text must be cut off by the caller: a box
in it counts like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from katgym_envs.math.verifier.judge import judge_exactly

MAX_FORMS = 16
"""Different spellings of its answer in one message; more of them are a hedge."""
MAX_TAIL = 50_000
"""Characters at the end of a message without a box in which an answer is looked for."""
MAX_VALUE_CHARS = 600
"""Characters behind `Answer:` that are looked at; more than any answer may have."""
_BRACE = re.compile(
    r"(?P<box>\\(?:boxed|fbox|framebox)\s*\{)"
    r"|\\(?:boxed|fbox)(?![A-Za-z])\s*(?P<bare>[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)|[A-Za-z]"
    r"|\\[dt]?frac\s*(?:\d|\{[^{}\n]{0,99}\})\s*(?:\d|\{[^{}\n]{0,99}\}))"
    r"(?=[.,;:*]*(?:\s|$|\$|\\[)\]]))(?!\s{0,9}[-+*/^=<>])"
    r"|\\.|[{}]",
    re.DOTALL,
)
_ADJECTIVE = r"(?:(?:final|correct|required|desired)[ \t]+)?"
_LINK = (
    r"(?:so|thus|hence|therefore|then|and|finally|in conclusion|we conclude that|this means that)"
)
_BREAK = r"(?:^|(?<=[.,;:!?。，、；：！？\s]))"
_GIVEN = re.compile(
    # A line of its own: `Answer: 7`, `**Final answer**` above the value, `#### 7`.
    rf"^[ \t>*_#-]*(?:(?:the[ \t]+)?{_ADJECTIVE}answer(?:[ \t]+is)?[ \t*_]*[:=：]|####)"
    rf"|^[ \t>]*(?:[*#][ \t*_#]*)(?:the[ \t]+)?{_ADJECTIVE}answer[ \t*_]*$"
    # A sentence or clause: `So the answer is 7.`
    rf"|(?:^|(?<=[.!?,;:])[ \t])[ \t>*_#-]*(?:{_LINK}\b,?[ \t]+){{0,2}}"
    rf"(?:(?:the|our|my)[ \t]+)?{_ADJECTIVE}answer"
    r"(?:[ \t]+to[ \t]+(?:the|this)[ \t]+(?:problem|question))?"
    r"(?:[ \t]+(?:is|equals|would be|must be)(?:[ \t]+(?:therefore|thus|hence|then))?"
    r"(?=[ \t\n:])[ \t]*[:：]?|[ \t]*[:：])"
    # Chinese, Japanese, Korean.
    rf"|{_BREAK}[所以因此故最终終的]{{0,6}}答案[ \t]*(?:应该|应)?(?:是|为|為|[:：])[:：]?"
    rf"|{_BREAK}答え(?:は|[:：])|{_BREAK}정?답(?:은|[:：])",
    re.IGNORECASE | re.MULTILINE,
)
_PIECE = re.compile(
    r"(?P<formula>\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\))"
    r"|\n|\.(?=\s+[A-Z(]|\s*$)|。|,?\s+(?:because|since|which|so|and (?:we|this|that)"
    r"|as (?:required|desired|claimed|needed|expected|stated|shown|above|wanted))\b|\s+\(see\b",
    re.DOTALL,
)
"""A formula, or where a sentence, or what it says of the answer, ends."""

_SENTENCE = re.compile(
    r"[A-Z](?:(?!\b(?:is|are|equals)\b)[^=<>\d]){2,200}\b(?:is|are|equals)\s+(\S+)"
)
"""`The largest n is 34` behind `Answer:`."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a message commits to.

    `answer` is the last answer given, None without any. `is_hedged` is True when the message gives
    several that differ, which earns nothing. `is_boxed` tells whether the answer stands in a box.

    Example:
        Extraction(answer="7", is_hedged=False, is_boxed=True)
    """

    answer: str | None
    is_hedged: bool = False
    is_boxed: bool = False


def extract_final_answer(text: str) -> Extraction:
    r"""Return the message's answer; only without a box one that its words give.

    Example:
        >>> extract_final_answer(r"so \boxed{7}, or \boxed{8}")
        Extraction(answer='8', is_hedged=True, is_boxed=True)
    """
    boxes = _boxes(text)
    answers = boxes or _given(text)
    if not answers:
        return Extraction(None)
    last = answers[-1]
    forms = {"".join(answer.split()): answer for answer in answers}
    del forms["".join(last.split())]
    is_hedged = len(forms) > MAX_FORMS
    for other in [] if is_hedged else forms.values():
        verdict = judge_exactly(other, last)
        is_hedged = is_hedged or verdict is None or not verdict.is_correct
    return Extraction(last, is_hedged=is_hedged, is_boxed=bool(boxes))


def _boxes(text: str) -> list[str]:
    """Return the contents of all closed boxes that are in no other closed box, in one pass."""
    spans: list[tuple[int, int]] = []
    open_braces: list[int | None] = []
    for match in _BRACE.finditer(text):
        if match["box"]:
            open_braces.append(match.end())
        elif match["bare"]:
            spans.append(match.span("bare"))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, match.start()))
    return [box for start, end in spans if (box := text[start:end].strip())]


def _given(text: str) -> list[str]:
    """Return what lines and sentences give as the answer.

    Words (`the answer is an integer`) are dropped where others give something that has a digit, a
    formula or a letter of a choice.
    """
    values = list(_values(text))
    formal = [value for value in values if re.search(r"[\d\\$]|^\W*[A-J]\W*$", value)]
    return formal or values


def _values(text: str) -> Iterator[str]:
    for match in _GIVEN.finditer(text, max(0, len(text) - MAX_TAIL)):
        behind = text[match.end() : match.end() + MAX_VALUE_CHARS].lstrip(" \t*_:#")
        if not behind.strip() or not (behind := behind.lstrip()):
            continue
        ends = (found.start() for found in _PIECE.finditer(behind) if not found["formula"])
        value = behind[: next(ends, None)].strip().rstrip("*").strip()
        if sentence := _SENTENCE.fullmatch(value):
            value = sentence[1]
        if value:
            yield value
