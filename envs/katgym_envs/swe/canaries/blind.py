"""Test modules without their expected values: what would be compared with them is noted instead.

An expected value is a constant that only equalities of assertions read: an operand of one, or bound
to a name that is nothing but such an operand (an assignment, a column of `parametrize` or of a
loop's table). In its place stands `katgym_hidden(NUMBER)`, which equals everything and notes with
what it was compared (`test_run/inside_program.py`). Not here: what is done with the notes
(`grading/blind_round.py`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from katgym_envs.swe.canaries.canary import Edit
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import FUNCTIONS, Function

_METHODS = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual",
    "assertSetEqual", "assertMultiLineEqual", "assertSequenceEqual",
}  # fmt: skip
_HELPERS = {"assert_equal", "assert_equals", "eq_"}
_TYPES = {"dict": dict, "frozenset": frozenset, "list": list, "set": set, "tuple": tuple}
_MAX_REPEATED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindModule:
    """A module without its expected values.

    Example:
        BlindModule(source=b"def test_a(): assert f(1) == katgym_hidden(0)", values=(2,))
    """

    source: bytes
    values: tuple[Any, ...]
    """The values that were there, by number from the `first` that was asked for."""


def hide_expected(source: bytes, *, first: int = 0) -> BlindModule:
    """Return the module without its expected values, numbered from `first`; lines stay lines.

    Raises `UsageError` for what is no Python module.
    """
    text = ModuleText(source)
    tables = _module_tables(text.tree)
    edits: list[Edit] = []
    found: Counter[ast.expr] = Counter()
    for node in ast.walk(text.tree):
        if isinstance(node, FUNCTIONS):
            operands, methods = _equalities_of(node)
            found.update(_expected(node, operands, tables))
            ends = [text.span(method)[1] for method in methods]
            edits += [
                Edit(end - len(method.attr), end, ("assertEqual",))  # which demands no type
                for method, end in zip(methods, ends, strict=True)
            ]
    # A cell of a table that several functions read has to be an expected value to all of them.
    readers = {cell: t.num_readers for t in tables.values() for cell in ast.walk(t.value)}
    hidden = [node for node, times in found.items() if times >= readers.get(node, 1)]
    values: list[Any] = []
    last = 0
    for node in sorted(hidden, key=text.span):
        start, end = text.span(node)
        if start < last:
            continue  # within another
        last = end
        lines = "\n" * text.source.count(b"\n", start, end)
        edits.append(Edit(start, end, (f"katgym_hidden({first + len(values)}{lines})",)))
        values.append(_constant(node))
    pieces: list[bytes] = []
    position = 0
    for edit in sorted(edits, key=lambda e: e.start):
        pieces += [source[position : edit.start], str(edit.parts[0]).encode()]
        position = edit.end
    return BlindModule(source=b"".join([*pieces, source[position:]]), values=tuple(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A constant of the module, and how often it is read."""

    value: ast.expr
    num_readers: int


def _module_tables(tree: ast.Module) -> dict[str, _Table]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = Counter(node.id for node in names if not isinstance(node.ctx, ast.Load))
    read = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
    return {
        target.id: _Table(value=statement.value, num_readers=read[target.id])
        for statement in tree.body
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if isinstance(target := statement.targets[0], ast.Name) and stored[target.id] == 1
    }


def _equalities_of(node: Function) -> tuple[dict[ast.expr, ast.expr], list[ast.Attribute]]:
    """Return the operands of equalities that have to hold, each with the other one.

    Also the methods of unittest that demand a type of theirs.
    """
    pairs: list[tuple[ast.expr, ast.expr]] = []
    methods = []
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            pairs += _equalities(child.test)
        elif isinstance(child, ast.Expr) and isinstance(call := child.value, ast.Call):
            is_helper = isinstance(call.func, ast.Name) and call.func.id in _HELPERS
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS
            if (is_helper or is_method) and len(call.args) >= 2:
                pairs.append((call.args[0], call.args[1]))
                if isinstance(call.func, ast.Attribute) and call.func.attr != "assertEqual":
                    methods.append(call.func)
    return dict(pairs) | {other: one for one, other in pairs}, methods


def _equalities(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _equalities(value)
    elif isinstance(test, ast.Compare) and [type(op) for op in test.ops] == [ast.Eq]:
        yield test.left, test.comparators[0]


def _expected(
    node: Function, operands: dict[ast.expr, ast.expr], tables: dict[str, _Table]
) -> Iterator[ast.expr]:
    """Yield the constants that are operands of a function's equalities, or that these name."""
    names: dict[str, None] = {}
    for operand, other in operands.items():
        if _is_constant(operand) and not _is_constant(other):
            yield operand
        elif isinstance(operand, ast.Name):
            names[operand.id] = None
    body = [child for statement in node.body for child in ast.walk(statement)]
    for name in names:
        uses = [c for c in body if isinstance(c, ast.Name) and c.id == name]
        loads = [c for c in uses if isinstance(c.ctx, ast.Load)]
        if all(load in operands for load in loads):
            bound = _Bound(name, tables)
            bound.look(node, body)
            if len(bound.stores) == len(uses) - len(loads):
                yield from (value for value in bound.values if _is_constant(value))


@dataclass
class _Bound:
    """The values of a name in a function, and the names there that store them."""

    name: str
    tables: dict[str, _Table]
    values: list[ast.expr] = field(default_factory=list)
    stores: list[ast.Name] = field(default_factory=list)

    def look(self, node: Function, body: list[ast.AST]) -> None:
        """Look at the decorators of a parameter's function, else at what its body assigns."""
        if any(a.arg == self.name for a in ast.walk(node.args) if isinstance(a, ast.arg)):
            for decorator in node.decorator_list:
                columns, table = _parametrized(decorator)
                if self.name in columns:
                    self.add_column(columns.index(self.name), len(columns) > 1, table)
            return
        for child in body:
            if isinstance(child, ast.Assign) and len(child.targets) == 1:
                target = child.targets[0]
                if isinstance(target, ast.Name) and target.id == self.name:
                    self.stores += [target] if _is_constant(child.value) else []
                    self.values.append(child.value)
            elif isinstance(child, ast.For):
                is_row = isinstance(child.target, ast.Tuple)
                targets = child.target.elts if isinstance(child.target, ast.Tuple) else []
                for at, target in enumerate(targets or [child.target]):
                    if isinstance(target, ast.Name) and target.id == self.name:
                        self.stores.append(target)
                        self.add_column(at, is_row, child.iter)

    def add_column(self, index: int, is_row: bool, table: ast.expr | None) -> None:
        """Add what stands in a column of a table, whose lines are rows or single values."""
        if isinstance(table, ast.Name) and table.id in self.tables:
            table = self.tables[table.id].value
        for line in table.elts if isinstance(table, (ast.List, ast.Tuple)) else []:
            cells = [] if is_row else [line]
            if isinstance(line, ast.Call) and ast.unparse(line.func).endswith("param"):
                cells = line.args
            elif is_row and isinstance(line, (ast.List, ast.Tuple)):
                cells = line.elts
            self.values += cells[index : index + 1]


def _parametrized(decorator: ast.expr) -> tuple[list[str], ast.expr | None]:
    """Return the names and the table of a `parametrize`; no names if it is beyond us."""
    if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith(
        ".parametrize"
    ):
        return [], None
    given = dict(zip(("argnames", "argvalues"), decorator.args, strict=False))
    given |= {k.arg: k.value for k in decorator.keywords if k.arg is not None}
    names = given.get("argnames")
    if names is None or not _is_constant(names) or "indirect" in given:
        return [], None
    listed = _constant(names)
    if isinstance(listed, str):
        listed = [part.strip() for part in listed.split(",") if part.strip()]
    return list(listed), given.get("argvalues")


def _is_constant(node: ast.expr) -> bool:
    try:
        value = _constant(node)
        return bool(value == value)  # no NaN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, ArithmeticError):
        return False


def _constant(node: ast.expr) -> Any:
    """Return the value of a literal, of texts that are joined, added or repeated, and the like.

    Raises `ValueError` or `TypeError` for what is none.
    """
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _constant(left) + _constant(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            if times > _MAX_REPEATED:
                raise ValueError("too long")
            return _constant(left) * times
        case ast.Call(func=ast.Attribute(value=text, attr="join"), args=[parts], keywords=[]):
            return str(ast.literal_eval(text)).join(_constant(parts))
        case ast.Call(func=ast.Name(id=name), args=[value], keywords=[]) if name in _TYPES:
            return _TYPES[name](_constant(value))
        case ast.List(elts=elements):
            return [_constant(element) for element in elements]
    return ast.literal_eval(node)
