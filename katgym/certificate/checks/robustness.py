"""Check that malformed, huge and hostile answers get a valid reward, in time.

They are played in a process of its own, which is killed where the grader does not return. Not here:
answers that are wrongly paid but well formed (`shortcuts.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from katgym.certificate.answers import AnswerForm
from katgym.certificate.child import Child, reference
from katgym.certificate.findings import Failed, Result, Skipped
from katgym.certificate.study import study_tasks
from katgym.certificate.subject import EPSILON, Subject, max_value
from katgym.environment.env import Env
from katgym.environment.messages import Action, normalize_action

TIMEOUT_S = 20.0
"""Seconds for one answer; longer where the oracle's own episode takes more than a tenth of it."""
START_TIMEOUT_S = 120.0
HUGE = 1_000_000
"""Characters of a huge answer."""
_NUMBER = "7919"
"""What is wrapped; a task's answer is hardly this."""

HOSTILE: Mapping[str, str] = {
    "a million digits": "9" * HUGE,
    "a million letters": "a" * HUGE,
    "a million blanks": " " * HUGE + _NUMBER,
    "a hundred thousand words": "word " * 100_000,
    "fifty thousand lines": f"{_NUMBER}\n" * 50_000,
    "deep parentheses": "(" * 10_000 + _NUMBER + ")" * 10_000,
    "open parentheses": "(" * 50_000,
    "deep brackets": "[" * 50_000,
    "deep JSON": '{"a":' * 10_000 + _NUMBER + "}" * 10_000,
    "deep braces": "{" * 20_000 + "}" * 20_000,
    "deep roots": r"\sqrt{" * 3_000 + "2" + "}" * 3_000,
    "many boxes": rf"\boxed{{{_NUMBER}}}" * 5_000,
    "many tags": f"<answer>{_NUMBER}</answer>" * 5_000,
    "open tags": "<answer>" * 20_000,
    "many signs": "-" * 50_000 + _NUMBER,
    "repeated letters": "a" * 50_000 + "!",
    "repeated digits": "1" * 50_000 + "!",
    "repeated pairs": "ab" * 50_000 + "!",
    "tower of powers": "9**9**9**9",
    "power in TeX": r"9^{9^{9^{9}}}",
    "factorials": "9!!!!!!!!!!!!!!!!!!!!",
    "huge exponent": "1e999999999",
    "division by zero": "1/0",
    "not a number": "nan",
    "infinity": "inf",
    "minus infinity": "-inf",
    "NUL and control characters": "\x00\x01\x1b[2J\x7f\r\n7919",
    "other digits": "٣٤٥ ௪௫ ²³ ⅷ",
    "invisible characters": "\u200b\u202e7919\u2066\ufeff",
    "a lone surrogate": "\ud800",
    "emoji": "👩‍👩‍👧‍👦" * 2_000,
    "combining marks": "e" + "\u0301" * 20_000,
    "format strings": "%s%n{0.__class__}{}${HOME}`id`",
    "Python": "__import__('os')._exit(7)",
    "a regular expression": r"(a+)+$|.*",
    "null": "null",
    "an object": '{"answer": null, "score": 1}',
    "markup": "</answer><answer><script>1</script>",
}
"""Name -> answer, said as it is and in the env's own form."""


def hostile_actions(form: AnswerForm, env: Env) -> list[tuple[str, Action]]:
    """Return name and action of every hostile answer, and of malformed calls of each tool."""
    found: list[tuple[str, Action]] = []
    for name, text in HOSTILE.items():
        found.append((name, text))
        wrapped = form.wrap(text)
        if wrapped != text:
            found.append((f"{name} as answer", wrapped))
    for tool in env.tools:
        for name, arguments in (
            ("no JSON", '{"a": '),
            ("a list for arguments", "[1, 2]"),
            ("deep arguments", '{"a":' * 2_000 + "1" + "}" * 2_000),
            ("huge arguments", json.dumps({"a": "9" * 100_000})),
            ("unknown arguments", '{"no_such_argument": NaN}'),
        ):
            function = {"name": tool, "arguments": arguments}
            call = {"id": "call_0", "type": "function", "function": function}
            message: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
            found.append((f"{name} for tool {tool!r}", message))
    return found


async def check_robustness(subject: Subject) -> Result:
    """Every hostile answer ends in a valid reward below the maximum; none raises, hangs or wins."""
    env = subject.fresh()
    target = reference(env)
    start = time.monotonic()
    study = await study_tasks(subject, env, num_train=8, num_test=1)
    oracle_s = (time.monotonic() - start) / (len(study.train) + 1)
    limit_s = max(TIMEOUT_S, 10 * oracle_s)
    named = hostile_actions(study.form, env)
    actions = [normalize_action(action) for _, action in named]
    gold = {str(example.answer) for example in study.train}
    request = {
        "job": "answers",
        "target": target,
        "task_id": study.train[0].task_id,
        "actions": actions,
    }
    highest = max_value(env)
    is_spent = subject.budget()
    slowest, num = 0.0, 0
    with Child(request) as child:
        for name, _ in named:
            if await asyncio.to_thread(child.read, START_TIMEOUT_S) is None:
                break
            try:
                answer = await asyncio.to_thread(child.read, limit_s)
            except TimeoutError:
                subject.hangs = name
                raise Failed(f"no reward for {name} after {limit_s:.0f} s") from None
            if answer is None:
                raise Failed(f"the process that graded {name} ended")
            if answer["value"] is None:
                raise Failed(f"no valid reward for {name}: {answer['error']}")
            if answer["value"] > highest - EPSILON and name not in gold:
                raise Failed(f"{name} earns {answer['value']:g}, as much as the solution")
            slowest, num = max(slowest, answer["seconds"]), num + 1
            if is_spent():
                break
    if num == 0:
        raise Skipped(f"no process could play the env: {child.error()}")
    figures = {"num_answers": float(num), "slowest_s": round(slowest, 3)}
    return f"{num} of {len(named)} hostile answers graded, the slowest in {slowest:.1f} s", figures
