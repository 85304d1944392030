"""Which tests a canary alters: those whose text, or whose row of a table, it changes.

A test that a canary alters may pass on correct code all the same, as where a row is input to one
test and the expected value of another. It is then neither itself nor a canary. Not here: which
tests fail (`ValidCanary.fails`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import FUNCTIONS, Function, Part, TestIndex
from katgym_envs.swe.hidden import TestFunction

_MAX_KEPT = 64
_PLAIN = {"argnames", "argvalues", "ids"}
"""Keywords of `parametrize` that leave its cases in the order of its rows."""
Span = tuple[int, int]


def altered_tests(
    source: bytes, edits: Iterable[Span], functions: Iterable[TestFunction]
) -> frozenset[str]:
    """Return the node ids of tests of a module that edits of its bytes alter.

    An edit in a row of a table alters the cases that are made of that row, where a function has as
    many cases as its decorators' tables make; any other edit alters all cases of the functions that
    use what it changes. Raises `UsageError` for a module that is not Python.
    """
    by_name = {function.qualname: function for function in functions}
    reach = _reach_of(source)
    found: set[str] = set()
    for edit in edits:
        for qualname in reach.tests(edit):
            if (function := by_name.get(qualname)) is not None:
                nodes = function.node_ids()
                found.update(nodes[number] for number in reach.cases(qualname, len(nodes), edit))
    return frozenset(found)


class _Reach:
    """A parsed module: which tests a place in it reaches, and which of their cases."""

    def __init__(self, source: bytes) -> None:
        self._text = ModuleText(source)
        tests_of = TestIndex.of(self._text.tree).tests_of
        self._parts = [(self._span(part), tests) for part, tests in tests_of.items()]
        self._rows_of: dict[str, Sequence[Span]] = {}
        """Name -> spans of the rows of its table."""
        for part in tests_of:
            node = part.node
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and (value := node.value) is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self._rows_of[target.id] = self._rows(value)
        self._tables = {
            qualname: self._decorated(part.node)
            for part, tests in tests_of.items()
            if part.is_test and isinstance(part.node, FUNCTIONS)
            for qualname in tests
            if qualname.rpartition("::")[2] == part.node.name
        }
        """Test -> its decorators' tables, that of the first one first."""

    def tests(self, edit: Span) -> Iterator[str]:
        """Yield the tests that use what an edit changes."""
        for span, tests in self._parts:
            if _is_in(edit, span):
                yield from tests

    def cases(self, qualname: str, num_cases: int, edit: Span) -> Iterable[int]:
        """Return the numbers of a test's cases that an edit alters.

        pytest takes the rows of the first decorator in turn, and those of the next one after that.
        """
        tables = self._tables.get(qualname, [])
        numbers: list[int] = []
        step = 1
        for rows in tables:
            hit = [number for number, span in enumerate(rows) if _is_in(edit, span)]
            numbers += [case for case in range(num_cases) if case // step % len(rows) in hit]
            step *= len(rows)
        return numbers if numbers and step == num_cases else range(num_cases)

    def _span(self, part: Part) -> Span:
        """Return the bytes of a statement, its decorators included."""
        start, end = self._text.span(part.node)
        decorators = part.node.decorator_list if isinstance(part.node, FUNCTIONS) else []
        return min([start, *(self._text.span(d)[0] for d in decorators)]), end

    def _decorated(self, node: Function) -> list[Sequence[Span]]:
        """Return the rows of the tables that a test is decorated with; [] if one is not plain."""
        found: list[Sequence[Span]] = []
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            if not ast.unparse(decorator.func).endswith("parametrize"):
                continue
            if not {k.arg for k in decorator.keywords} <= _PLAIN:
                return []
            named = [k.value for k in decorator.keywords if k.arg == "argvalues"]
            for table in (*decorator.args[1:2], *named):
                rows = self._rows(table)
                if not rows:
                    return []
                found.append(rows)
        return found

    def _rows(self, table: ast.expr) -> Sequence[Span]:
        """Return the spans of a table's rows; none if that cannot be told."""
        if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute):
            is_whole = table.func.attr in ("items", "keys", "values") and not table.args
            return self._rows(table.func.value) if is_whole else []
        if isinstance(table, ast.Name):
            return self._rows_of.get(table.id, [])
        if isinstance(table, ast.Dict):
            keys = [key for key in table.keys if key is not None]
            if len(keys) < len(table.keys):  # another dict is put in
                return []
            pairs = zip(keys, table.values, strict=True)
            return [(self._text.span(k)[0], self._text.span(v)[1]) for k, v in pairs]
        if isinstance(table, (ast.List, ast.Tuple, ast.Set)):
            if any(isinstance(row, ast.Starred) for row in table.elts):
                return []
            return [self._text.span(row) for row in table.elts]
        return []


@lru_cache(maxsize=_MAX_KEPT)
def _reach_of(source: bytes) -> _Reach:
    return _Reach(source)


def _is_in(edit: Span, span: Span) -> bool:
    return span[0] <= edit[0] and edit[1] <= span[1]
