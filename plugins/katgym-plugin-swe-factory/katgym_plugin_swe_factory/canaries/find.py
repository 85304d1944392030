"""Finds candidates in a test module: every value a test depends on, changed in several ways.

Not here: the changes themselves (`literals.py`, `containers.py`, `assertions.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from katgym_envs.swe.canaries.canary import Canary, Role, spread
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import FUNCTIONS, Function, Part, TestIndex
from katgym_plugin_swe_factory.canaries import assertions, containers, literals
from katgym_plugin_swe_factory.canaries.literals import Change

Found = tuple[Role, int, Change]
_CONSTRUCTORS = {
    "dict", "set", "frozenset", "list", "tuple", "OrderedDict", "Decimal", "Fraction", "Counter",
    "deque", "bytes", "bytearray", "datetime", "date", "time", "timedelta", "defaultdict", "approx",
}  # fmt: skip
EXPECTED_NAMES = ("expect", "want", "should", "correct", "answer", "truth")
_SKIPPED_CALLS = {
    "sleep",
    "skip",
    "skipIf",
    "skipUnless",
    "skipif",
    "xfail",
    "importorskip",
    "fail",
}
_SKIPPED_KEYWORDS = {"ids", "id", "marks", "msg", "reason", "timeout", "indirect", "scope"}
_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


def find_canaries(source: bytes, *, per_test: int | None = None) -> tuple[Canary, ...]:
    """Return candidates in a fixed order, each changing the module in one place or swapping two.

    With `per_test` only so many for each test, of as many kinds as there are, wrong expected values
    first; a test may get fewer. Raises `UsageError` for what is not UTF-8 Python.
    """
    text = ModuleText(source)
    index = TestIndex.of(text.tree)
    canaries: dict[str, Canary] = {}
    for part, tests in index.tests_of.items():
        for role, line, (kind, edits) in _Walk(text).part(part):
            canary = Canary(
                kind=kind,
                role=role,
                line=line,
                tests=tests,
                edits=edits,
                source_id=text.source_id,
            )
            canaries.setdefault(repr(canary.edits), canary)
    found = sorted(canaries.values(), key=lambda c: (c.site, c.kind, repr(c.edits)))
    return tuple(found if per_test is None else _select(found, index.tests, per_test))


def _select(found: list[Canary], tests: tuple[str, ...], per_test: int) -> list[Canary]:
    """Return at most `per_test` for each test; what is chosen for one counts for others."""
    by_test: dict[str, list[Canary]] = {test: [] for test in tests}
    for canary in spread(found):
        for test in canary.tests:
            by_test[test].append(canary)
    chosen: dict[int, Canary] = {}
    for test in tests:
        have = [c for c in by_test[test] if id(c) in chosen]
        for canary in _in_turns(by_test[test]):
            if len(have) >= per_test:
                break
            if id(canary) not in chosen:
                chosen[id(canary)] = canary
                have.append(canary)
    return [canary for canary in found if id(canary) in chosen]


def _in_turns(canaries: list[Canary]) -> Iterator[Canary]:
    """Yield role by role in rounds; within a role other kinds and places first."""
    turns: dict[Role, list[Canary]] = {}
    for role in Role:
        of_role = [c for c in canaries if c.role is role]
        seen: dict[str, int] = {}
        places: dict[tuple[int, int], int] = {}
        ranked: list[tuple[int, int, Canary]] = []
        for canary in of_role:
            rank = seen.get(canary.kind, 0) + places.get(canary.site, 0)
            seen[canary.kind] = seen.get(canary.kind, 0) + 1
            places[canary.site] = places.get(canary.site, 0) + 1
            ranked.append((rank, len(ranked), canary))
        turns[role] = [canary for *_, canary in sorted(ranked, key=lambda r: r[:2])]
    take = {Role.EXPECTED: 3, Role.TABLE: 3, Role.INPUT: 2, Role.SHARED: 1, Role.ASSERTION: 1}
    while any(turns.values()):
        for role, queue in turns.items():
            yield from queue[: take[role]]
            del queue[: take[role]]


class _Walk:
    """Goes through one part of a module and knows what a value is to the test."""

    def __init__(self, text: ModuleText) -> None:
        self.text = text

    def part(self, part: Part) -> Iterator[Found]:
        node = part.node
        if isinstance(node, FUNCTIONS):
            yield from self._function(node, None if part.is_test else Role.SHARED)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            yield from self._table(node.value)
        elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef)):
            yield from self._statement(node, Role.SHARED)

    def _function(self, node: Function, role: Role | None) -> Iterator[Found]:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and assertions.call_name(decorator) == "parametrize":
                named = [k.value for k in decorator.keywords if k.arg == "argvalues"]
                for value in named + decorator.args[1:2]:
                    yield from self._table(value)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                yield from self._value(default, role or Role.INPUT)
        for statement in node.body:
            yield from self._statement(statement, role)

    def _table(self, node: ast.expr) -> Iterator[Found]:
        """Yield changes of values in rows; the number of rows and their lengths stay."""
        if not isinstance(node, (ast.List, ast.Tuple)):
            yield from self._value(node, Role.TABLE)
            return
        for line, change in containers.swap_rows(self.text, node.elts):
            yield Role.TABLE, line, change
        for row in node.elts:
            if isinstance(row, ast.Call) and assertions.call_name(row) == "param":
                cells = row.args
            elif isinstance(row, (ast.List, ast.Tuple)):
                cells = row.elts
                spans = containers.element_spans(self.text, row)
                for change in containers.swap_elements(self.text, spans, row):
                    yield Role.TABLE, row.lineno, change
            else:
                cells = [row]
            for cell in cells:
                yield from self._value(cell, Role.TABLE)

    def _statement(self, node: ast.stmt, role: Role | None) -> Iterator[Found]:
        """Yield changes in a statement; `role` None: of a test's own body."""
        if isinstance(node, ast.Assert):
            if role is None:
                for change in assertions.turn_test(self.text, node.test):
                    yield Role.ASSERTION, node.test.lineno, change
            yield from self._value(node.test, role or Role.EXPECTED)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call):
                yield from self._call(node.value, role or Role.TABLE, is_statement=True)
            elif not isinstance(node.value, ast.Constant):  # a docstring
                yield from self._value(node.value, role or Role.INPUT)
        elif isinstance(node, ast.Assign):
            names = " ".join(ast.unparse(target) for target in node.targets).lower()
            is_expected = any(word in names for word in EXPECTED_NAMES)
            yield from self._value(
                node.value, role or (Role.EXPECTED if is_expected else Role.INPUT)
            )
        elif isinstance(node, FUNCTIONS):
            yield from self._function(node, role or Role.INPUT)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from self._children(node, role)

    def _children(self, node: ast.AST, role: Role | None) -> Iterator[Found]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "type_params", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._statement(child, role)
                elif isinstance(child, ast.expr):
                    yield from self._value(child, role or Role.INPUT)
                elif isinstance(child, (ast.withitem, ast.ExceptHandler, ast.match_case)):
                    yield from self._children(child, role)

    def _call(self, node: ast.Call, role: Role, *, is_statement: bool = False) -> Iterator[Found]:
        name = assertions.call_name(node)
        if name in _SKIPPED_CALLS:
            return
        if name in assertions.RAISES:
            for change in assertions.other_exceptions(self.text, node):
                yield Role.EXPECTED, node.lineno, change
        if is_statement and name.lower().startswith("assert"):
            for change in assertions.turn_method(self.text, node):
                yield Role.ASSERTION, node.lineno, change
            role = Role.EXPECTED if role is Role.TABLE else role
        elif name not in _CONSTRUCTORS and not is_statement and role is Role.EXPECTED:
            role = Role.INPUT
        yield from self._value(node.func, Role.INPUT if role is Role.EXPECTED else role)
        for argument in node.args:
            yield from self._value(argument, role)
        for keyword in node.keywords:
            if keyword.arg not in _SKIPPED_KEYWORDS:
                yield from self._value(keyword.value, role)

    def _value(self, node: ast.expr, role: Role) -> Iterator[Found]:
        """Yield changes of a value and of everything in it."""
        is_expected = role in (Role.EXPECTED, Role.TABLE)
        if isinstance(node, ast.Constant):
            for change in literals.change_literal(self.text, node, is_expected=is_expected):
                yield role, node.lineno, change
        elif isinstance(node, ast.Call):
            yield from self._call(node, role)
        elif isinstance(node, (ast.JoinedStr, ast.Lambda)):
            if isinstance(node, ast.Lambda):
                yield from self._value(node.body, role)
        else:
            if isinstance(node, _CONTAINERS) and role is not Role.SHARED:
                for change in containers.change_container(self.text, node):
                    yield role, node.lineno, change
            yield from self._nest(node, role)

    def _nest(self, node: ast.AST, role: Role) -> Iterator[Found]:
        is_operand = isinstance(node, (ast.UnaryOp, ast.BinOp, ast.Subscript, ast.Slice))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and is_operand:
                # `-None` fails by itself, before anything is compared.
                for change in literals.change_literal(self.text, child, is_expected=False):
                    yield role, child.lineno, change
            elif isinstance(child, ast.expr):
                yield from self._value(child, role)
            elif isinstance(child, ast.comprehension):
                yield from self._nest(child, role)
