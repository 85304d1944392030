"""Problem statements: what a user would report of a bug, made from how tests fail.

    text = problem_statement("inflection", "0.5.1", failures, seed=3)

A statement shows calls with what they give and what they should; it names no test and quotes no
line of the fix. Not here: the snippets (`reproduction.py`), the runs (`observed_tests.py`).
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from katgym_envs.swe.parse_source import parse_source
from katgym_plugin_swe_factory.statements.observed_tests import (
    Observation,
    comparison,
    find_function,
)
from katgym_plugin_swe_factory.statements.reproduction import CannotShowError, Snippet, reproduce

MAX_EXAMPLES = 3
_MAX_SHOWN = 400
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failing test with what was observed of it."""

    source: str
    """Of its module, as it is."""
    qualname: str
    place: str
    """`TestResult.place` on the base state."""
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureExample:
    """One call with what comes of it and what should."""

    snippet: Snippet
    got: str
    expected: str
    subject: str
    """Dotted name of what is called, for the title."""


def example_of(failure: Failure) -> FailureExample | None:
    """Return the example a failure makes, or None if it cannot be shown by itself."""
    tree = parse_source(failure.source)
    function = find_function(tree, failure.qualname)
    first = re.match(r"(\d+):", failure.place)
    if function is None or first is None:
        return None
    line = int(first[1])
    found_at = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n.lineno == line]
    shown = _describe(found_at[-1], failure.observation) if found_at else None
    if shown is None:
        return None
    values = {n: v for n, v in failure.observation.names.items() if not n.startswith("katgym_")}
    try:
        snippet = reproduce(tree, function, shown.statement, shown.call, values)
    except CannotShowError:
        return None
    return FailureExample(
        snippet=snippet, got=shown.got, expected=shown.expected, subject=_subject(shown.call)
    )


def problem_statement(
    package: str, version: str, examples: Sequence[FailureExample], num_failing: int, *, seed: int
) -> str:
    """Return the text of an issue; `examples` has at least one. The seed chooses the wording."""
    rng = random.Random(seed)
    shown = list(examples[:MAX_EXAMPLES])
    subject = shown[0].subject
    name = f"`{subject}`" if subject else package
    is_raise = shown[0].got.startswith("raises")
    titles = (
        (f"{name} raises an unexpected exception", f"Exception from {name}", f"{name} fails")
        if is_raise
        else (f"{name} gives a wrong result", f"Wrong result from {name}", f"{name} misbehaves")
    )
    opening = rng.choice(
        (
            f"With {package} {version}:",
            f"I ran into this with {package} {version}.",
            f"Seen with {package} {version}:",
        )
    )
    parts = [rng.choice(titles), opening]
    for example in shown:
        code = "\n".join((*example.snippet.lines, example.snippet.call))
        indented = "\n".join("    " + line if line else "" for line in code.split("\n"))
        got = example.got[0].upper() + example.got[1:]
        parts.append(f"{indented}\n\n{got}\nExpected: {example.expected}")
    if num_failing > len(shown):
        parts.append(
            rng.choice(("Related calls are affected, too.", "These are not the only ones."))
        )
    return "\n\n".join(parts) + "\n"


def is_leaking(statement: str, gold_lines: Collection[str], hidden_names: Collection[str]) -> bool:
    """Return whether a statement holds a line of the fix, or the name of a hidden test."""
    lines = {_squeeze(line) for line in statement.splitlines()}
    words = set(re.findall(r"\w+", statement))
    return bool(
        any(_squeeze(line) in lines for line in gold_lines if len(_squeeze(line)) > 3)
        or any(len(_squeeze(g)) >= 12 and _squeeze(g) in _squeeze(statement) for g in gold_lines)
        or words & set(hidden_names)
    )


def _squeeze(text: str) -> str:
    return " ".join(text.split())


class _Shown(NamedTuple):
    """The call of a test that failed, the statement it is in, what came of it and what should."""

    statement: ast.stmt
    call: ast.expr
    got: str
    expected: str


def _describe(statement: ast.stmt, seen: Observation) -> _Shown | None:
    found = comparison(statement)
    if seen.exception == "AssertionError":
        if found is not None and seen.left is not None:
            return _describe_comparison(statement, found, seen)
        # It does not raise, says `with self.assertRaises(...)`, or it is raised below the test.
        return _describe_silence(statement) if "not raised" in seen.text else None
    if seen.exception == "Failed" and "DID NOT RAISE" in seen.text:
        return _describe_silence(statement)
    call: ast.expr | None = None
    if found is not None:
        left, right, _ = found
        call = right if right is not None and _num_calls(right) > _num_calls(left) else left
    elif isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return)):
        call = statement.value
    if call is None or not _num_calls(call):
        return None
    text = _show(f"{seen.exception}: {seen.text}" if seen.text else seen.exception)
    return _Shown(statement, call, f"raises {text}", "no exception")


def _describe_comparison(
    statement: ast.stmt, found: tuple[ast.expr, ast.expr | None, str], seen: Observation
) -> _Shown | None:
    left, right, kind = found
    got_text, expected_text = seen.left, seen.right
    call: ast.expr = left
    if right is not None and _num_calls(right) > _num_calls(left) and kind in ("==", "is"):
        call, got_text, expected_text = right, seen.right, seen.left
    elif right is not None and not _num_calls(left) and kind in ("in", "not in"):
        call, got_text, expected_text = right, seen.right, seen.left
        kind = "contains" if kind == "in" else "not contains"
    if got_text is None or (right is not None and expected_text is None):
        return None
    got, other = _show(got_text), _show(expected_text or "")
    if got == other and kind in ("==", "is"):
        return None  # their difference does not show in their text
    expected = {
        "==": other, "is": other, "!=": f"anything but {other}", "is not": f"not {other}",
        "in": f"one of {other}", "not in": f"none of {other}", "true": "a true value",
        "false": "a false value", "None": "`None`", "contains": f"to contain {other}",
        "not contains": f"not to contain {other}",
    }.get(kind, f"a value {kind} {other}")  # fmt: skip
    return _Shown(statement, call, f"gives {got}", expected)


def _describe_silence(statement: ast.stmt) -> _Shown | None:
    """Describe a block that should have raised and did not."""
    if not isinstance(statement, ast.With) or len(statement.body) != 1:
        return None
    last = statement.body[-1]
    call = last.value if isinstance(last, (ast.Expr, ast.Assign)) else None
    context = statement.items[0].context_expr
    if call is None or not isinstance(context, ast.Call) or not context.args:
        return None
    error = ast.unparse(context.args[0]).rpartition(".")[2]
    return _Shown(last, call, "raises nothing", f"`{error}` is raised")


def _show(value: str) -> str:
    """Return a value as code, cut, without addresses and line breaks."""
    text = _ADDRESS.sub("", value).replace("\n", "\\n")
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 20] + " ..."
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def _num_calls(node: ast.AST) -> int:
    return sum(isinstance(n, ast.Call) for n in ast.walk(node))


def _subject(node: ast.AST) -> str:
    """Return the dotted name of the outermost call, "" if it has none worth telling."""
    for item in ast.walk(node):
        if isinstance(item, ast.Call):
            text = ast.unparse(item.func)
            if re.fullmatch(r"[A-Za-z_][\w.]*", text) and text not in _DULL:
                return text
    return ""


_DULL = frozenset(
    {
        "list", "dict", "tuple", "set", "sorted", "len", "str", "repr", "next", "type", "print",
        "isinstance", "sum", "max", "min", "all", "any", "bool", "int", "map",
    }
)  # fmt: skip
