"""Test modules without their expected values: what would be compared with them is noted instead.

An expected value is a constant that only equalities of assertions read: an operand of one, or bound
to a name that is nothing but such an operand (an assignment, a column of `parametrize` or of a
loop's table). In its place stands `katgym_hidden(NUMBER)`, which equals everything and notes with
what it was compared (`test_run/inside_program.py`). Tests that do not run are taken out: what they
say of the product is not told. Not here: what is done with the notes (`grading/blind_round.py`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from katgym_envs.swe.canaries.canary import Edit
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import (
    FUNCTIONS,
    Function,
    flat,
    is_fixture,
    is_test_name,
)

_METHODS = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual",
    "assertSetEqual", "assertMultiLineEqual", "assertSequenceEqual",
}  # fmt: skip
_HELPERS = {"assert_equal", "assert_equals", "eq_"}
_TYPES = {"dict": dict, "frozenset": frozenset, "list": list, "set": set, "tuple": tuple}
_CHECK = re.compile(r"_?assert|(?:raises|warns|fail)$")
"""Names of functions that assert something."""
_SAME = ([ast.Eq], [ast.Is])
_MAX_REPEATED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindModule:
    """A module without its expected values.

    Example:
        BlindModule(
            source=b"def test_a(): assert f(1) == katgym_hidden(0)", values=(2,), is_complete=True
        )
    """

    source: bytes
    values: tuple[Any, ...]
    """The values that were there, by number from the `first` that was asked for."""
    is_complete: bool
    """Whether the tests assert nothing but equalities with hidden values."""


def hide_expected(
    source: bytes, *, first: int = 0, functions: Collection[str] | None = None
) -> BlindModule:
    """Return the module without its expected values, numbered from `first`.

    `functions` are the qualified names of the tests that are to run, None for all. Raises
    `UsageError` for what is no Python module.
    """
    if functions is not None:
        source = _keep_tests(ModuleText(source), {name.split("::")[-1] for name in functions})
    text = ModuleText(source)
    tables = _module_tables(text.tree)
    found: Counter[ast.expr] = Counter()
    known: dict[ast.expr, Any] = {}
    equalities: list[_Equalities] = []
    for node in ast.walk(text.tree):
        if isinstance(node, FUNCTIONS):
            own = _Equalities.of(node)
            own.cells, folded = _expected(node, own.operands, tables)
            found.update({cell for cells in own.cells.values() for cell in cells})
            known |= folded
            equalities.append(own)
    # A cell of a table that several functions read has to be an expected value to all of them.
    readers = {cell: t.num_readers for t in tables.values() for cell in ast.walk(t.value)}
    hidden = {node for node, times in found.items() if times >= readers.get(node, 1)}
    # What a function within another one asserts is of both.
    edits = list({edit for own in equalities for edit in own.edits(text, hidden)})
    values: list[Any] = []
    last = 0
    for node in sorted(hidden, key=text.span):
        start, end = text.span(node)
        if start < last:
            continue  # within another
        last = end
        edits.append(Edit(start, end, (f"katgym_hidden({first + len(values)})",)))
        values.append(known[node] if node in known else _constant(node))
    pieces: list[bytes] = []
    position = 0
    for edit in sorted(edits, key=lambda e: e.start):
        pieces += [source[position : edit.start], str(edit.parts[0]).encode()]
        position = edit.end
    return BlindModule(
        source=b"".join([*pieces, source[position:]]),
        values=tuple(values),
        is_complete=all(own.is_complete(hidden) for own in equalities),
    )


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


def _keep_tests(text: ModuleText, kept: set[str]) -> bytes:
    """Return the module without its other tests, unless something refers to one."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Name):
            kept.add(node.id)
        elif isinstance(node, ast.Attribute):
            kept.add(node.attr)
    edits = []
    bodies = [text.tree.body]
    bodies += [node.body for node in text.tree.body if isinstance(node, ast.ClassDef)]
    for node in [node for body in bodies for node in flat(body)]:
        if not isinstance(node, FUNCTIONS) or node.name in kept:
            continue
        if is_test_name(node.name) and not is_fixture(node):
            start, end = text.span(node)
            for decorator in node.decorator_list[:1]:
                start = text.source.rindex(b"@", 0, text.span(decorator)[0])
            edits.append((start, end))
    pieces: list[bytes] = []
    position = 0
    for start, end in sorted(edits):
        pieces += [
            text.source[position:start],
            b"pass" + b"\n" * text.source.count(b"\n", start, end),
        ]
        position = end
    return b"".join([*pieces, text.source[position:]])


@dataclass
class _Equalities:
    """The equalities that have to hold in a function."""

    is_test: bool
    operands: dict[ast.expr, ast.expr] = field(default_factory=dict)
    """Each operand with the other one."""
    methods: list[ast.Attribute] = field(default_factory=list)
    """Methods of unittest that demand a type of theirs."""
    identities: list[ast.Compare] = field(default_factory=list)
    """Those that `is` asks for."""
    num_others: int = 0
    """What else is asserted."""
    cells: dict[ast.expr, list[ast.expr]] = field(default_factory=dict)
    """Operand -> the constants that it stands for."""

    @classmethod
    def of(cls, node: Function) -> _Equalities:
        """Return those of a function."""
        found = cls(is_test=is_test_name(node.name))
        for child in ast.walk(node):
            if isinstance(child, ast.Assert):
                found.look(child.test)
            elif isinstance(child, ast.Call):
                match child.func:
                    case ast.Name(id=name) if name in _HELPERS and len(child.args) >= 2:
                        found.add(child.args[0], child.args[1])
                    case ast.Attribute(attr=name) if name in _METHODS and len(child.args) >= 2:
                        found.add(child.args[0], child.args[1])
                        found.methods += [child.func] if name != "assertEqual" else []
                    case ast.Name(id=name) | ast.Attribute(attr=name):
                        found.num_others += _CHECK.match(name) is not None
        return found

    def look(self, test: ast.expr) -> None:
        """Look at what is asserted."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                self.look(value)
        elif isinstance(test, ast.Compare) and [type(op) for op in test.ops] in _SAME:
            self.add(test.left, test.comparators[0])
            self.identities += [test] if isinstance(test.ops[0], ast.Is) else []
        else:
            self.num_others += 1

    def add(self, one: ast.expr, other: ast.expr) -> None:
        """Add an equality of two operands."""
        self.operands |= {one: other, other: one}

    def edits(self, text: ModuleText, hidden: set[ast.expr]) -> Iterator[Edit]:
        """Yield what makes equalities of what asks for more where a side is hidden."""
        for method in self.methods:
            end = text.span(method)[1]  # `assertEqual` demands no type
            yield Edit(end - len(method.attr), end, ("assertEqual",))
        for test in self.identities:  # nothing is the same as what stands for a value
            if self._is_hidden(test.left, hidden):
                start, end = text.span(test.left)[1], text.span(test.comparators[0])[0]
                between = re.sub(rb"\bis\b", b"==", text.source[start:end])
                yield Edit(start, end, (between.decode(),))

    def is_complete(self, hidden: set[ast.expr]) -> bool:
        """Return whether all that is asserted has a hidden value, and a test asserts something."""
        if self.num_others or (self.is_test and not self.operands):
            return False
        return all(self._is_hidden(operand, hidden) for operand in self.operands)

    def _is_hidden(self, operand: ast.expr, hidden: set[ast.expr]) -> bool:
        sides = [self.cells.get(side, []) for side in (operand, self.operands[operand])]
        return any(cells and hidden.issuperset(cells) for cells in sides)


def _expected(
    node: Function, operands: dict[ast.expr, ast.expr], tables: dict[str, _Table]
) -> tuple[dict[ast.expr, list[ast.expr]], dict[ast.expr, Any]]:
    """Return what operands of a function's equalities stand for: constants.

    Also those that are for nothing else but such constants, and the values of what names are in.
    """
    known = _fold(node, operands)
    found: dict[ast.expr, list[ast.expr]] = {}
    for operand, other in operands.items():
        if (operand in known or _is_constant(operand)) and not _is_constant(other):
            found[operand] = [operand]
    body = [child for statement in node.body for child in ast.walk(statement)]
    names = [child for child in body if isinstance(child, ast.Name)]
    num_found = -1
    while num_found < len(found):  # what a hidden value is made of may be hidden next
        num_found = len(found)
        within = {child for cells in found.values() for cell in cells for child in ast.walk(cell)}
        for name in {n.id: n for n in names if n in operands or n in within}.values():
            uses = [n for n in names if n.id == name.id]
            loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
            bound = _Bound(name.id, tables, known)
            bound.look(node, body)
            own = {child for value in bound.values for child in ast.walk(value)}
            is_hidden = all(load in operands or load in within or load in own for load in loads)
            if is_hidden and len(bound.stores) == len(uses) - len(loads):
                cells = [v for v in bound.values if v in known or _is_constant(v)]
                found |= {load: cells for load in loads if load not in found}
    return found, known


def _fold(node: Function, operands: dict[ast.expr, ast.expr]) -> dict[ast.expr, Any]:
    """Return the values of what is assigned in a function's body, and compared, if it is constant.

    A list that is changed in place has another value; gold does not compute the one told here.
    """
    known: dict[ast.expr, Any] = {}
    names: dict[str, Any] = {}
    for statement in node.body:
        children = list(ast.walk(statement))
        exprs = [c for c in children if isinstance(c, ast.expr) and c in operands]
        if isinstance(statement, ast.Assign):
            exprs = [statement.value]
        for expr in exprs:
            if isinstance(expr, ast.Name) or not _is_constant(expr, names):
                continue
            known[expr] = _constant(expr, names)
        for child in children:
            if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
                names.pop(child.id, None)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value in known:
                names[name] = known[value]
    return known


@dataclass
class _Bound:
    """The values of a name in a function, and the names there that store them."""

    name: str
    tables: dict[str, _Table]
    known: dict[ast.expr, Any]
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
                    is_known = child.value in self.known or _is_constant(child.value)
                    self.stores += [target] if is_known else []
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


def _is_constant(node: ast.expr, names: Mapping[str, Any] = {}) -> bool:
    try:
        value = _constant(node, names)
        return bool(value == value)  # no NaN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, ArithmeticError):
        return False


def _constant(node: ast.expr, names: Mapping[str, Any] = {}) -> Any:
    """Return the value of a literal, of texts that are joined, added or repeated, and the like.

    `names` are those with a known value. Raises `ValueError` or `TypeError` for what is none.
    """
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _constant(left, names) + _constant(right, names)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            if times > _MAX_REPEATED:
                raise ValueError("too long")
            return _constant(left, names) * times
        case ast.Call(func=ast.Attribute(value=text, attr="join"), args=[parts], keywords=[]):
            return str(ast.literal_eval(text)).join(_constant(parts, names))
        case ast.Call(func=ast.Attribute(value=text, attr="strip"), args=[], keywords=[]):
            return str.strip(_constant(text, names))
        case ast.Call(func=ast.Name(id=name), args=[value], keywords=[]) if name in _TYPES:
            return _TYPES[name](_constant(value, names))
        case ast.List(elts=elements):
            return [_constant(element, names) for element in elements]
        case ast.JoinedStr(values=parts):
            return "".join(str(_constant(part, names)) for part in parts)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return _constant(value, names)
    return ast.literal_eval(node)
