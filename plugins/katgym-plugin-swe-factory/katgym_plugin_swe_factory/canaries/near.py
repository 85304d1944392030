"""Near canaries: the expected value replaced by one nearer to what the buggy code computes.

    finder = NearFinder(source)
    finder.find(BaseFailure(qualname="test_a", place="7:1", left="'citys'", right="'cities'"))

The other candidates (`find.py`) are mostly farther from it than the right value is, so that a
forger could tell them by their likeness to its own result. Not here: running the base state
(`making/`), the values (`near_values.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from katgym_envs.swe.canaries.canary import Canary, Role
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import FUNCTIONS, Part, TestIndex
from katgym_envs.swe.parse_source import parsing
from katgym_plugin_swe_factory.canaries import assertions
from katgym_plugin_swe_factory.canaries.find import EXPECTED_NAMES
from katgym_plugin_swe_factory.canaries.near_values import near_values
from katgym_plugin_swe_factory.canaries.rewrite import literal_value, rewrite

RowOf = Callable[[tuple[int, int]], int | None]
"""Bytes of the module -> row of the table with a row per case that they are in, or None."""
_TABLE_CALLS = {"parametrize", "param"}
_MAX_NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFailure:
    """How a test fails on the base state: `TestResult.place` and `TestResult.compared`."""

    qualname: str
    place: str
    left: str
    """`repr` of the left operand."""
    right: str
    ordinal: int = 0
    """Which case of its function."""


class NearFinder:
    """Finds near canaries in one module."""

    def __init__(self, source: bytes) -> None:
        """Parse; raises `UsageError` for what is not UTF-8 Python."""
        self._text = ModuleText(source)
        self._index = TestIndex.of(self._text.tree)
        self._statements: dict[int, ast.stmt] = {}
        for node in ast.walk(self._text.tree):  # outer ones come first
            if isinstance(node, ast.stmt):
                self._statements[node.lineno] = node

    def find(
        self, failure: BaseFailure, *, row_of: RowOf = lambda site: None, limit: int = 6
    ) -> tuple[Canary, ...]:
        """Return at most `limit` candidates, in a fixed order; none without an expected literal."""
        left, right = _value(failure.left), _value(failure.right)
        found = self._places(failure, left, right, row_of)
        rows = [self._canaries(*place, failure.qualname) for place in found]
        in_turns = (c for row in zip_longest(*rows) for c in row if c is not None)
        return tuple(c for c, _ in zip(in_turns, range(limit), strict=False))

    def _places(
        self, failure: BaseFailure, left: Any, right: Any, row_of: RowOf
    ) -> list[tuple[ast.expr, Any, Any]]:
        """Return (literal, base value, right value); of the comparison itself, if it has one."""
        lines = [int(step.partition(":")[0]) for step in failure.place.split(">") if step]
        steps = [self._statements[line] for line in lines if line in self._statements]
        if not steps:
            return []
        pairs = list(_operands(steps[-1]))
        for one, other in pairs:
            for node, right_value, base in ((other, right, left), (one, left, right)):
                if _is(node, right_value):
                    return [(node, base, right_value)]
        is_left = bool(pairs) and all(_is_expected_left(*pair) for pair in pairs)
        base, wanted = (right, left) if is_left else (left, right)
        nodes = self._elsewhere(failure, steps, wanted, row_of)
        return [(node, base, wanted) for node in nodes[:_MAX_NODES]]

    def _elsewhere(
        self, failure: BaseFailure, steps: list[ast.stmt], wanted: Any, row_of: RowOf
    ) -> list[ast.expr]:
        """Return literals of a value in what the test uses, those in the row of its case first."""
        parts = [p for p, tests in self._index.tests_of.items() if failure.qualname in tests]
        called = [s.value for s in steps[:-1] if isinstance(s, ast.Expr)]
        found = chain(*(_literals(part.node, wanted, called) for part in parts))
        ranked = []
        for node in found:
            row = row_of(self._text.span(node))
            if row in (None, failure.ordinal):
                ranked.append((row is None, -node.lineno, -node.col_offset, node))
        return [node for *_, node in sorted(ranked, key=lambda r: r[:3])]

    def _canaries(self, node: ast.expr, base: Any, wanted: Any, qualname: str) -> Iterator[Canary]:
        part = self._part_of(node, qualname)
        if part is None:
            return
        for kind, value in near_values(base, wanted):
            edits = rewrite(self._text, node, value)
            if edits:
                yield Canary(
                    kind=kind,
                    role=Role.EXPECTED,
                    line=node.lineno,
                    tests=self._index.tests_of[part],
                    edits=edits,
                    source_id=self._text.source_id,
                )

    def _part_of(self, node: ast.expr, qualname: str) -> Part | None:
        for part, tests in self._index.tests_of.items():
            decorators = getattr(part.node, "decorator_list", [])
            first = min([part.node.lineno, *(d.lineno for d in decorators)])
            last = part.node.end_lineno or first
            if qualname in tests and first <= node.lineno <= last:
                return part
        return None


def _value(shown: str) -> Any:
    """Return the value of a `repr` that was seen to be a literal."""
    with parsing:
        return ast.literal_eval(shown)


def _is(node: ast.expr, value: Any) -> bool:
    is_literal, found = literal_value(node)
    return is_literal and type(found) is type(value) and repr(found) == repr(value)


def _operands(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield both sides of what a statement says is equal."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            yield node.left, node.comparators[0]
        elif (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and assertions.call_name(node).lower().startswith("assert")
        ):
            yield node.args[0], node.args[1]


def _is_expected_left(left: ast.expr, right: ast.expr) -> bool:
    """Return whether the left side is the expected one, as names and calls tell."""
    computed = [any(isinstance(n, ast.Call) for n in ast.walk(side)) for side in (left, right)]
    if computed[0] != computed[1]:
        return computed[1]
    named = [
        any(word in ast.unparse(side).lower() for word in EXPECTED_NAMES) for side in (left, right)
    ]
    return named[0] and not named[1]


def _literals(node: ast.AST, wanted: Any, called: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the literals of a value below a node, but for those the product is called with."""
    if isinstance(node, ast.expr) and _is(node, wanted):
        yield node
        return
    if isinstance(node, ast.Call) and not (
        node in called or assertions.call_name(node) in _TABLE_CALLS
    ):
        return
    if isinstance(node, FUNCTIONS):
        children: list[ast.AST] = [*node.decorator_list, *node.body]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _literals(child, wanted, called)
