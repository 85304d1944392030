"""Test modules that assert nothing: what they would compare is noted, and no result is told.

    assert f(1) == 2                         katgym_note(0, f(1))
    self.assertFalse(is_valid(x))            katgym_note(1, not (is_valid(x)))
    with pytest.raises(ValueError): g()      with katgym_raises(2): g()

What a result is compared with is dropped where the test alone makes it, and what names stand for is
hidden where nothing else reads them (`katgym_hidden`): an assignment, a column of `parametrize` or
of a loop's table, an argument of a helper. A test that raises ends there and passes, one that does
not run is taken out: whatever the product computes, all tests of such a module pass. What was noted
is compared with what gold's notes are (`grading/blind_round.py`); the names that start with
`katgym_` are in `test_run/inside_program.py`.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import (
    FUNCTIONS,
    Function,
    flat,
    is_fixture,
    is_test_name,
)

_EQUAL = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual",
    "assertSetEqual", "assertMultiLineEqual", "assertSequenceEqual", "assertAlmostEqual",
    "assert_equal", "assert_equals", "eq_",
}  # fmt: skip
_TRUTHS = {
    "assertTrue": "{0}", "assertFalse": "{0}", "assertIsNotNone": "({0}) is None",
    "assertNotEqual": "({0}) == ({1})", "assertIsNot": "({0}) is ({1})",
    "assertIn": "({0}) in ({1})",
    "assertNotIn": "({0}) in ({1})", "assertIsInstance": "isinstance({0}, {1})",
    "assertNotIsInstance": "isinstance({0}, {1})", "assertGreater": "({0}) > ({1})",
    "assertLessEqual": "({0}) > ({1})", "assertLess": "({0}) < ({1})",
    "assertGreaterEqual": "({0}) < ({1})",
}  # fmt: skip
"""Method of unittest -> what it asks, or asks the opposite of."""
_MOCKS = {
    "assert_called_once": "call_count", "assert_not_called": "call_count",
    "assert_called": "called",
    "assert_called_with": "call_args", "assert_called_once_with": "call_args_list",
    "assert_any_call": "call_args_list", "assert_has_calls": "mock_calls",
}  # fmt: skip
"""Method of a mock -> what it looks at."""
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_CHECK = re.compile(r"_?assert|(?:warns|deprecated_call)$")
"""Names of functions that assert something."""
_OPPOSITE = {
    ast.NotEq: "==", ast.IsNot: "is", ast.NotIn: "in", ast.LtE: ">", ast.GtE: "<", ast.Lt: "<",
    ast.Gt: ">", ast.In: "in",
}  # fmt: skip
_PURE_METHODS = {
    "join", "upper", "lower", "strip", "lstrip", "rstrip", "format", "encode", "decode", "replace",
    "split", "splitlines", "items", "keys", "values", "copy", "get", "title", "capitalize",
}  # fmt: skip
_IMPURE = {"id", "hash", "open", "input", "iter", "next", "getattr", "vars", "super", "globals"}
_FOREIGN = {*sys.stdlib_module_names, "pytest"}
_LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What an exception has to be.

    Example:
        Raised(names=("ValueError",), pattern="no price")
    """

    names: tuple[str, ...] = ()
    """Of classes, one of which it is or derives from; empty for gold's own class."""
    pattern: str = ""
    """Searched in its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindModule:
    """A module that notes instead of asserting.

    Example:
        BlindModule(source=b"def test_a(): katgym_note(0, f(1))", num_places=1, is_complete=True)
    """

    source: bytes
    num_places: int
    """Places that note, numbered from the `first` that was asked for."""
    raised: Mapping[int, Raised] = field(default_factory=dict)
    """Number of a place where an exception is awaited -> which."""
    is_complete: bool
    """Whether it asserts nothing besides."""


def blind_module(
    source: bytes,
    *,
    first: int = 0,
    functions: Collection[str] | None = None,
    helpers: Collection[str] = (),
) -> BlindModule:
    """Return the module that notes, at places numbered from `first`.

    `functions` are the qualified names of the tests that are to run, None for all; `helpers` the
    names of functions of other modules that were made blind. Raises `UsageError` for what is no
    Python module.
    """
    text = ModuleText(source)
    if functions is not None:
        names = {name.split("::")[-1] for name in functions}
        text = ModuleText(_keep_tests(text, names))
    return _Blinding(text, first, helpers).module()


def function_names(source: bytes) -> tuple[set[str], set[str]]:
    """Return the names of a module's functions, and those that it imports from other modules.

    `UsageError` for what is no module.
    """
    nodes = list(ast.walk(ModuleText(source).tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return (
        {node.name for node in nodes if isinstance(node, FUNCTIONS)},
        {alias.name for node in imports for alias in node.names},
    )


def _keep_tests(text: ModuleText, kept: set[str]) -> bytes:
    """Return the module without its other tests, unless something refers to one."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Name):
            kept.add(node.id)
        elif isinstance(node, ast.Attribute):
            kept.add(node.attr)
    edits = []
    for node in _functions(text.tree):
        if node.name not in kept and is_test_name(node.name) and not is_fixture(node):
            start, end = text.span(node)
            for decorator in node.decorator_list[:1]:
                start = text.source.rindex(b"@", 0, text.span(decorator)[0])
            edits.append((start, end, "pass" + "\n" * text.source.count(b"\n", start, end)))
    return _edited(text.source, edits)


def _functions(tree: ast.Module) -> list[Function]:
    """Return the functions of a module and of its classes."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return [node for body in bodies for node in flat(body) if isinstance(node, FUNCTIONS)]


def _edited(source: bytes, edits: Sequence[tuple[int, int, str]], start: int = 0) -> bytes:
    """Return bytes with pieces replaced; offsets count from `start`."""
    pieces: list[bytes] = []
    position = 0
    for begin, end, new in sorted(edits):
        pieces += [source[position : begin - start], new.encode()]
        position = end - start
    return b"".join([*pieces, source[position:]])


class _Blinding:
    """One module that is being made blind."""

    def __init__(self, text: ModuleText, first: int, helpers: Collection[str]) -> None:
        self.text = text
        self.next = first
        self.first = first
        self.helpers = helpers
        self.raised: dict[int, Raised] = {}
        self.tables = _module_tables(text.tree)
        self.imported = _imported(text.tree)
        self.own = {node.name: node for node in ast.walk(text.tree) if isinstance(node, FUNCTIONS)}
        self.calls = [node for node in ast.walk(text.tree) if isinstance(node, ast.Call)]
        self.hidden: set[ast.expr] = set()
        self.cell_edits: list[tuple[int, int, str]] = []
        self.edits: list[tuple[int, int, str]] = []
        self.is_complete = True

    def module(self) -> BlindModule:
        """Return the whole module."""
        found = list(_scopes(self))
        self.hidden = _hidden_cells(found, self.tables)
        self.cell_edits = self._cell_edits()
        for scope in found:
            for statement in _own_statements(scope.node):
                self.statement(statement, scope)
        for node in _functions(self.text.tree):
            if is_test_name(node.name) and isinstance(node, ast.FunctionDef):
                start = self.text.span(node)[0]
                begin = self.text.source.rfind(b"\n", 0, start) + 1
                indent = self.text.source[begin:start].decode()
                self.edits.append((start, start, f"@katgym_quiet\n{indent}"))
        cells = [edit for edit in self.cell_edits if not self._is_replaced(*edit[:2])]
        return BlindModule(
            source=_edited(self.text.source, [*self.edits, *cells]),
            num_places=self.next - self.first,
            raised=self.raised,
            is_complete=self.is_complete,
        )

    def _is_replaced(self, start: int, end: int) -> bool:
        return any(e[0] <= start and end <= e[1] and e[0] < e[1] for e in self.edits)

    def _cell_edits(self) -> list[tuple[int, int, str]]:
        """Return the edits that hide what names stand for."""
        spans = sorted({self.text.span(cell) for cell in self.hidden})
        kept: list[tuple[int, int]] = []
        for start, end in spans:
            if not kept or start >= kept[-1][1]:  # else within another
                kept.append((start, end))
        return [(start, end, "katgym_hidden") for start, end in kept]

    def piece(self, node: ast.expr) -> str:
        """Return an expression's source, without what is hidden in it."""
        start, end = self.text.span(node)
        edits = [e for e in self.cell_edits if start <= e[0] and e[1] <= end]
        return _edited(self.text.source[start:end], edits, start).decode()

    def number(self) -> int:
        """Return the number of a new place."""
        self.next += 1
        return self.next - 1

    def note(self, *values: str) -> str:
        """Return a call that notes values."""
        return f"katgym_note({', '.join([str(self.number()), *values])})"

    def replace(self, node: ast.stmt | ast.expr, new: str) -> None:
        """Put text in a node's place."""
        start, end = self.text.span(node)
        self.edits.append((start, end, new))

    def statement(self, node: ast.stmt, scope: _Scope) -> None:
        """Rewrite a statement if it asserts something, else the calls in it that do."""
        if isinstance(node, ast.Assert):
            if isinstance(node.test, ast.Constant):  # `assert False`: this place is not reached
                self.replace(node, self.note())
            else:
                self.replace(node, ", ".join(self.asserted(node.test, scope)))
            return
        call = node.value if isinstance(node, ast.Expr) else None
        new = self.checked(call, scope) if isinstance(call, ast.Call) else None
        if new is not None:
            self.replace(node, new)
            return
        for child in _own_expressions(node):
            if isinstance(child, ast.Call):
                self.call(child)

    def call(self, node: ast.Call) -> None:
        """Rewrite a call that awaits an exception; one that asserts something is beyond us."""
        name = _called(node)
        if self._is_replaced(*self.text.span(node)):
            return
        if name in _RAISES and (node.args or node.keywords):
            self.await_exception(node, name)
        elif _CHECK.match(name) and name not in self.own and name not in self.helpers:
            self.is_complete = False  # nobody knows what it asserts

    def await_exception(self, node: ast.Call, name: str) -> None:
        """Rewrite `raises` and the like."""
        given = {k.arg: k.value for k in node.keywords}
        is_regex = name == "assertRaisesRegex"
        num_own = 2 if is_regex else 1
        kind = node.args[0] if node.args else given.get("expected_exception")
        pattern = given.get("match") or given.get("expected_regex")
        if is_regex and len(node.args) > 1:
            pattern = node.args[1]
        number = self.number()
        text = pattern.value if isinstance(pattern, ast.Constant) else ""
        self.raised[number] = Raised(
            names=_class_names(kind), pattern=text if isinstance(text, str) else ""
        )
        if "check" in given or (pattern is not None and not isinstance(pattern, ast.Constant)):
            self.is_complete = False
        passed = [self.piece(arg) for arg in node.args[num_own:]]
        if passed:  # called here, with arguments of its own
            passed += [
                f"{k.arg}={self.piece(k.value)}" if k.arg else f"**{self.piece(k.value)}"
                for k in node.keywords
            ]
        self.replace(node, f"katgym_raises({', '.join([str(number), *passed])})")

    def checked(self, node: ast.Call, scope: _Scope) -> str | None:
        """Return what stands for a call that asserts something, None for any other."""
        name, args = _called(node), node.args
        if any(isinstance(arg, ast.Starred) for arg in args):
            return None
        if name in _EQUAL and len(args) >= 2:
            return self.equality(args[0], args[1], scope)
        if name == "assertIs" and len(args) >= 2:
            return self.equality(args[0], args[1], scope, " is ")
        if name == "assertIsNone" and args:
            return self.note(self.piece(args[0]))
        if name in _TRUTHS:
            form = _TRUTHS[name]
            num = 1 + ("{1}" in form)
            if len(args) >= num:
                return self.truth(form.format(*map(self.piece, args[:num])))
        if name in _MOCKS and isinstance(node.func, ast.Attribute):
            return self.note(f"{self.piece(node.func.value)}.{_MOCKS[name]}")
        if name == "fail" and isinstance(node.func, ast.Attribute):
            return self.note()
        return None

    def truth(self, text: str) -> str:
        """Return what notes whether something holds; that it has to is not told."""
        return self.note(f"not ({text})")

    def asserted(self, test: ast.expr, scope: _Scope) -> Iterator[str]:
        """Yield what stands for the parts of what is asserted."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from self.asserted(value, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self.truth(self.piece(operand))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                isinstance(op, (ast.Eq, ast.Is)) for op in ops
            ):
                for op, (side, next_side) in zip(ops, pairwise([left, *others]), strict=True):
                    how = " is " if isinstance(op, ast.Is) else ", "
                    yield self.equality(side, next_side, scope, how)
            case ast.Compare(left=left, ops=[op], comparators=[other]):
                one, two = self.piece(left), self.piece(other)
                yield self.truth(f"({one}) {_OPPOSITE[type(op)]} ({two})")
            case _:
                yield self.truth(self.piece(test))

    def equality(self, one: ast.expr, other: ast.expr, scope: _Scope, how: str = ", ") -> str:
        """Return what notes the sides of an equality that the test does not make by itself.

        how: what stands between them if it makes neither.
        """
        free = [side for side in (one, other) if not scope.is_hidden(side)]
        self.is_complete &= not any(map(scope.is_seen, free))
        sides = [side for side in free if not scope.is_data(side)]
        if len(sides) > 1:  # `(0, 1, size)`: a form that the test fills in
            sides = [side for side in sides if not _is_form(side)] or sides
        if not sides:  # a value that the product may have changed, and what it should be
            sides = [side for side in free if not isinstance(side, _LITERALS)] or free
        calls = [n for s in sides for n in ast.walk(s) if isinstance(n, ast.Call)]
        if not {"id", "hash"}.isdisjoint(map(_called, calls)):
            how = " == "  # numbers of this process only
        texts = [self.piece(side) for side in sides]
        if how != ", " and len(texts) > 1:
            texts = [how.join(f"({text})" for text in texts)]
        return self.note(*texts)


@dataclass
class _Scope:
    """A function of the module, and what its names stand for."""

    node: Function
    blinding: _Blinding
    operands: dict[ast.expr, ast.expr]
    """Sides of its equalities, each with the other one."""
    names: list[ast.Name]
    bound: dict[str, list[ast.expr] | None] = field(default_factory=dict)
    """Name -> what is bound to it; None if something unknown may be."""
    cells: dict[ast.expr, list[ast.expr]] = field(default_factory=dict)
    """Name that is read -> the expressions that it stands for and that may be hidden."""
    mixed: set[str] = field(default_factory=set)
    """Names of loops whose values have no expressions of their own."""

    def is_hidden(self, side: ast.expr) -> bool:
        """Return whether a side of an equality is a name whose values are all hidden."""
        cells = self.cells.get(_root(side))
        return bool(cells) and self.blinding.hidden.issuperset(cells or ())

    def is_seen(self, side: ast.expr) -> bool:
        """Return whether a side is a name for expected values alone, which could not be hidden."""
        if not isinstance(side, ast.Name) or not self.is_data(side):
            return False
        loads = [n for n in self.names if n.id == side.id and isinstance(n.ctx, ast.Load)]
        is_table = side.id in self.blinding.tables or self.is_local(side.id)
        return is_table and all(load in self.operands for load in loads)

    def values(self, name: str) -> list[ast.expr] | None:
        """Return what may be bound to a local name, None if that is not known."""
        if name not in self.bound:
            self.bound[name] = _bound_values(name, self)
        return self.bound[name]

    def is_data(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether the test alone makes a value: no function of the product has a part.

        Where `seen` names nothing, the value stands in place, and may be an object of the product.
        """
        match node:
            case ast.Name(id=name):
                return self._is_data_name(name, seen)
            case ast.Call(func=func, args=args, keywords=keywords):
                parts = [func, *args, *(k.value for k in keywords)]
                return self._is_pure(func, seen) and all(self.is_data(p, seen) for p in parts)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                if name in self.blinding.imported and not self.is_local(name):
                    return True
                return attr in _PURE_METHODS and self._is_data_name(name, seen)
            case ast.Attribute(value=value, attr=attr):
                is_path = isinstance(value, ast.Attribute) and attr not in _PURE_METHODS
                return (is_path or attr in _PURE_METHODS) and self.is_data(value, seen)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                inner = {n.id for g in node.generators for n in ast.walk(g.target)
                         if isinstance(n, ast.Name)}  # fmt: skip
                children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
                iterated = [g.iter for g in node.generators]
                return all(self.is_data(c, seen | inner) for c in [*iterated, *children])
            case ast.Subscript(value=value):  # whatever chooses in it
                return self.is_data(value, seen)
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr():
                return False
        return all(
            self.is_data(child, seen)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, (ast.expr, ast.keyword))
        )

    def _is_pure(self, func: ast.expr, seen: frozenset[str]) -> bool:
        """Return whether what is called is not of the product, or is a class of it in place."""
        match func:
            case ast.Name(id=name) if self.is_local(name):
                return True  # if it is data
            case ast.Name(id=name) if name in self.blinding.imported:
                is_class = name[:1].isupper() and not seen
                return is_class or self.blinding.imported[name]
            case ast.Name(id=name):
                return name not in _IMPURE and hasattr(builtins, name)
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if (
                name in self.blinding.imported and not self.is_local(name)
            ):
                is_class = attr[:1].isupper() and not seen
                return is_class or self.blinding.imported[name]
            case ast.Attribute(attr=attr):
                return attr in _PURE_METHODS
        return False

    def is_local(self, name: str) -> bool:
        """Return whether a function binds a name."""
        return any(n.id == name and not isinstance(n.ctx, ast.Load) for n in self.names) or any(
            arg.arg == name for arg in ast.walk(self.node.args) if isinstance(arg, ast.arg)
        )

    def _is_data_name(self, name: str, seen: frozenset[str]) -> bool:
        if name in seen:
            return True
        if self.is_local(name):
            values = self.values(name)
            return bool(values) and all(self.is_data(v, seen | {name}) for v in values or ())
        if name in self.blinding.tables:
            return self.is_data(self.blinding.tables[name].value, seen | {name})
        return name in self.blinding.imported or hasattr(builtins, name)

    def is_cell(self, node: ast.expr) -> bool:
        """Return whether an expression may be hidden where it stands."""
        return self.is_data(node) and not (isinstance(node, ast.Name) and self.is_local(node.id))


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


def _imported(tree: ast.Module) -> dict[str, bool]:
    """Return the names that a module imports, and whether they are the standard library's."""
    found: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                module = alias.name if isinstance(node, ast.Import) else node.module or ""
                is_own = isinstance(node, ast.ImportFrom) and node.level > 0
                name = (alias.asname or alias.name).split(".")[0]
                found[name] = not is_own and module.split(".")[0] in _FOREIGN
    return found


def _called(node: ast.Call) -> str:
    """Return the name of what is called, without what it is looked up in."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _class_names(node: ast.expr | None) -> tuple[str, ...]:
    """Return the names of exception classes, none if one is not told by its name."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    names = []
    for part in parts:
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name[:1].isupper():
                names.append(name)
            case _:
                return ()
    return tuple(names)


def _own_statements(node: Function) -> Iterator[ast.stmt]:
    """Yield the statements of a function, those of functions and classes within it left out."""
    waiting: list[ast.AST] = list(reversed(node.body))
    while waiting:
        child = waiting.pop()
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(child, ast.stmt):
            yield child
        below = [c for c in ast.iter_child_nodes(child)
                 if isinstance(c, (ast.stmt, ast.ExceptHandler, ast.match_case))]  # fmt: skip
        waiting += reversed(below)


def _own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, those of statements within it left out."""
    waiting = [c for c in ast.iter_child_nodes(node)
               if isinstance(c, (ast.expr, ast.withitem, ast.keyword))]  # fmt: skip
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    for child in waiting:
        yield from ast.walk(child)


def _scopes(blinding: _Blinding) -> Iterator[_Scope]:
    for node in ast.walk(blinding.text.tree):
        if isinstance(node, FUNCTIONS):
            names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
            yield _Scope(node, blinding, _operands(node), names)


def _operands(node: Function) -> dict[ast.expr, ast.expr]:
    """Return both sides of a function's equalities, each with the other."""
    found: dict[ast.expr, ast.expr] = {}

    def look(test: ast.expr) -> None:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                look(value)
        elif isinstance(test, ast.Compare) and all(
            isinstance(op, (ast.Eq, ast.Is)) for op in test.ops
        ):
            sides = [test.left, *test.comparators]
            for one, other in pairwise(sides):
                found.update({one: other, other: one})

    for statement in _own_statements(node):
        if isinstance(statement, ast.Assert):
            look(statement.test)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if _called(call) in _EQUAL and len(call.args) >= 2:
                found.update({call.args[0]: call.args[1], call.args[1]: call.args[0]})
    return found


def _hidden_cells(scopes: Sequence[_Scope], tables: Mapping[str, _Table]) -> set[ast.expr]:
    """Return the expressions to hide: what names stand for that only equalities read."""
    found: Counter[ast.expr] = Counter()
    for scope in scopes:
        scope.cells = _cells(scope)
        found.update({cell for cells in scope.cells.values() for cell in cells})
    # A cell of a table that several functions read has to be an expected value to all of them.
    readers = {cell: t.num_readers for t in tables.values() for cell in ast.walk(t.value)}
    return {node for node, times in found.items() if times >= readers.get(node, 1)}


def _cells(scope: _Scope) -> dict[ast.expr, list[ast.expr]]:
    """Return what names that only equalities read stand for, where it can be hidden."""
    found: dict[ast.expr, list[ast.expr]] = {}
    num_found = -1
    while num_found < len(found):  # what a hidden value is made of may be hidden next
        num_found = len(found)
        roots = {_root(side) for side in scope.operands}
        within = {child for cells in found.values() for cell in cells for child in ast.walk(cell)}
        for name in {n.id for n in scope.names if n in roots or n in within}:
            uses = [n for n in scope.names if n.id == name]
            loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
            values = scope.values(name)
            if not values or name in scope.mixed or any(load in found for load in loads):
                continue
            own = {child for value in values for child in ast.walk(value)}
            is_only = all(n in roots or n in within or n in own for n in loads)
            is_told = any(  # compared with a literal, it is what the product may have changed
                isinstance(scope.operands.get(n), _LITERALS) for n in loads
            )
            if is_only and not is_told and all(scope.is_cell(value) for value in values):
                found |= dict.fromkeys(loads, values)
    return found


def _root(side: ast.expr) -> ast.expr:
    """Return what a side is chosen from: `a` of `a[0]["x"]`."""
    while isinstance(side, ast.Subscript):
        side = side.value
    return side


def _is_form(side: ast.expr) -> bool:
    """Return whether a side is a literal but for names in it."""
    return isinstance(side, _LITERALS) and not any(isinstance(n, ast.Call) for n in ast.walk(side))


def _bound_values(name: str, scope: _Scope) -> list[ast.expr] | None:
    """Return all that may be bound to a name of a function, None if that cannot be told."""
    node, tables = scope.node, scope.blinding.tables
    stores = [n for n in scope.names if n.id == name and not isinstance(n.ctx, ast.Load)]
    arguments = [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    values: list[ast.expr] = []
    num_stores = 0
    if name in arguments:
        given = _given_values(name, scope)
        if given is None:
            return None
        values += given
    elif not stores:
        return [tables[name].value] if name in tables else None
    for child in ast.walk(node):
        if isinstance(child, ast.Assign) and len(child.targets) == 1:
            target = child.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                values.append(child.value)
                num_stores += 1
        elif isinstance(child, ast.For):
            is_row = isinstance(child.target, ast.Tuple)
            targets = child.target.elts if isinstance(child.target, ast.Tuple) else []
            for at, target in enumerate(targets or [child.target]):
                if isinstance(target, ast.Name) and target.id == name:
                    column = _column(at, is_row, _table(child.iter, scope), tables)
                    if column is None and scope.is_data(child.iter):
                        scope.mixed.add(name)
                        column = [child.iter]
                    if column is None:
                        return None
                    values += column
                    num_stores += 1
    return values if num_stores == len(stores) else None


def _table(node: ast.expr, scope: _Scope) -> ast.expr:
    """Return what a loop goes through: a table by its name, the items of a dictionary as rows."""
    if isinstance(node, ast.Name) and scope.is_local(node.id):
        values = scope.values(node.id) or []
        return values[0] if len(values) == 1 else node
    if isinstance(node, ast.Call) and _called(node) == "items" and not node.args:
        assert isinstance(node.func, ast.Attribute)
        found = _table(node.func.value, scope)
        if isinstance(found, ast.Name) and found.id in scope.blinding.tables:
            found = scope.blinding.tables[found.id].value
        if isinstance(found, ast.Dict) and None not in found.keys:
            rows = zip(found.keys, found.values, strict=True)
            return ast.List([ast.Tuple([k, v]) for k, v in rows if k is not None])
    return node


def _given_values(name: str, scope: _Scope) -> list[ast.expr] | None:
    """Return what a parameter may be: a column of `parametrize`, or what the module calls with."""
    for decorator in scope.node.decorator_list:
        columns, table = _parametrized(decorator)
        if name in columns:
            tables = scope.blinding.tables
            return _column(columns.index(name), len(columns) > 1, table, tables)
    if is_test_name(scope.node.name) or is_fixture(scope.node) or scope.node.args.vararg:
        return None
    arguments = [*scope.node.args.posonlyargs, *scope.node.args.args]
    names = [a.arg for a in arguments]
    calls = [c for c in scope.blinding.calls if _called(c) == scope.node.name]
    if name not in names or not calls:
        return None
    values = []
    for call in calls:
        is_method = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
        at = names.index(name) - is_method
        named = [k.value for k in call.keywords if k.arg == name]
        if any(isinstance(a, ast.Starred) for a in call.args) or None in (
            k.arg for k in call.keywords
        ):
            return None
        defaults = dict(zip(reversed(names), reversed(scope.node.args.defaults), strict=False))
        chosen = named or call.args[at : at + 1] or [defaults[name]] * (name in defaults)
        if not chosen:
            return None
        values += chosen
    return values


def _column(
    index: int, is_row: bool, table: ast.expr | None, tables: Mapping[str, _Table]
) -> list[ast.expr] | None:
    """Return what stands in a column of a table, whose lines are rows or single values."""
    if isinstance(table, ast.Name) and table.id in tables:
        table = tables[table.id].value
    if not isinstance(table, (ast.List, ast.Tuple)):
        return None
    values: list[ast.expr] = []
    for line in table.elts:
        cells = [] if is_row else [line]
        if isinstance(line, ast.Call) and ast.unparse(line.func).endswith("param"):
            cells = line.args
        elif is_row and isinstance(line, (ast.List, ast.Tuple)):
            cells = line.elts
        if index >= len(cells) or any(isinstance(cell, ast.Starred) for cell in cells):
            return None
        values.append(cells[index])
    return values


def _parametrized(decorator: ast.expr) -> tuple[list[str], ast.expr | None]:
    """Return the names and the table of a `parametrize`; no names if it is beyond us."""
    if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith(
        ".parametrize"
    ):
        return [], None
    given = dict(zip(("argnames", "argvalues"), decorator.args, strict=False))
    given |= {k.arg: k.value for k in decorator.keywords if k.arg is not None}
    if "argnames" not in given or "indirect" in given:
        return [], None
    try:
        listed = ast.literal_eval(given["argnames"])
    except ValueError:
        return [], None
    if isinstance(listed, str):
        listed = [part.strip() for part in listed.split(",") if part.strip()]
    return list(listed), given.get("argvalues")
