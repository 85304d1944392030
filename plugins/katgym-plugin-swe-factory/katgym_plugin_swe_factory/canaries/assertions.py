"""Assertions turned around, and other exceptions expected: for tests that hold no literals.

These do not catch a product whose objects claim to be equal to everything; wrong values do. Not
here: wrong values (`literals.py`, `containers.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from katgym_envs.swe.canaries.canary import Edit, pick
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_plugin_swe_factory.canaries.literals import Change

_OPERATORS: dict[type[ast.cmpop], tuple[bytes, str]] = {
    ast.Eq: (rb"==", "!="),
    ast.NotEq: (rb"!=", "=="),
    ast.Lt: (rb"<", ">="),
    ast.LtE: (rb"<=", ">"),
    ast.Gt: (rb">", "<="),
    ast.GtE: (rb">=", "<"),
    ast.In: (rb"\bin\b", "not in"),
    ast.NotIn: (rb"\bnot[ \t]+in\b", "in"),
    ast.Is: (rb"\bis\b", "is not"),
    ast.IsNot: (rb"\bis[ \t]+not\b", "is"),
}
_PAIRS = (
    ("assertTrue", "assertFalse"),
    ("assertEqual", "assertNotEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIn", "assertNotIn"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertRegex", "assertNotRegex"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
)
_METHODS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_SPECIAL_EQUALS = ("Equals", "ListEqual", "DictEqual", "TupleEqual", "SetEqual", "SequenceEqual")
_METHODS |= {f"assert{name}": "assertNotEqual" for name in _SPECIAL_EQUALS}
EXCEPTIONS = ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError")
RAISES = {"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "assert_raises"}


def turn_test(text: ModuleText, test: ast.expr) -> Iterator[Change]:
    """Yield the assertion of an `assert` statement, turned around."""
    if isinstance(test, ast.Compare):
        operands = [test.left, *test.comparators]
        for left, op, right in zip(operands, test.ops, operands[1:], strict=False):
            start, end = text.span(left)[1], text.span(right)[0]
            if b"#" in text.source[start:end]:
                continue
            pattern, new = _OPERATORS[type(op)]
            found = re.compile(pattern).search(text.source, start, end)
            if found:
                yield "operator", (Edit(found.start(), found.end(), (new,)),)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        start = text.span(test)[0]
        found = re.compile(rb"not\b[ \t]*").match(text.source, start)
        if found:
            yield "negation", (Edit(start, found.end(), ("",)),)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from turn_test(text, value)
    else:
        start, end = text.span(test)
        yield "negation", (Edit(start, start, ("not (",)), Edit(end, end, (")",)))


def turn_method(text: ModuleText, call: ast.Call) -> Iterator[Change]:
    """Yield a call of unittest's opposite method."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
        end = text.span(call.func)[1]
        start = end - len(call.func.attr)
        yield "assert_method", (Edit(start, end, (_METHODS[call.func.attr],)),)


def other_exceptions(text: ModuleText, call: ast.Call) -> Iterator[Change]:
    """Yield other exceptions for what `raises` and `assertRaises` expect; two of them."""
    if not call.args or not isinstance(call.args[0], (ast.Name, ast.Attribute)):
        return
    node = call.args[0]
    old = node.id if isinstance(node, ast.Name) else node.attr
    others = [name for name in EXCEPTIONS if name != old]
    if old in ("LookupError", "Exception", "BaseException"):
        others = ["ZeroDivisionError", "FileNotFoundError"]
    start, end = text.span(node)
    for turn in range(2):
        other = others[(pick(start) + turn) % len(others)]
        yield "exception", (Edit(start, end, (other,)),)


def call_name(call: ast.Call) -> str:
    """Return the last part of what is called, "" if it has no name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
