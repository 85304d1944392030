"""The lines of a test that lead to what it compares: a snippet a person could run.

Values of parameters and loop variables stand in it as literals; nothing of the test's name, class
or assertions does. Not here: the words around it (`statement.py`).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym_envs.swe.parse_source import parse_source, parsing

_MAX_LINES = 24
_MAX_LITERAL = 160
_BUILT_IN = frozenset(dir(builtins))


class CannotShowError(Exception):
    """The lines depend on something a snippet cannot hold: a fixture, `self`, a test helper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Lines that set up a call, and the call.

    Example:
        Snippet(lines=("import inflection",), call="inflection.pluralize('ox')")
    """

    lines: tuple[str, ...]
    call: str


def reproduce(
    module: ast.Module,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    statement: ast.stmt,
    expression: ast.AST,
    values: Mapping[str, str | None],
) -> Snippet:
    """Return what has to run before `expression` of `statement` in a test function, and it.

    values: `repr` of the function's local names when it failed. Raises `CannotShowError`.
    """
    if isinstance(function, ast.AsyncFunctionDef):
        raise CannotShowError("the test is a coroutine")
    before = _path_to(function.body, statement)
    if before is None:
        raise CannotShowError("the statement is not in the function itself")
    arguments = function.args
    names = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    parameters = frozenset(a.arg for a in names) - {"self"}
    builder = _Builder(module=module, values=values, parameters=parameters)
    builder.note_loops(before)
    shown = builder.literal_names(expression)
    builder.need(shown)
    setup = builder.slice(before)
    lines = [*builder.top_lines(), *setup]
    flat = [line for text in lines for line in text.split("\n")]
    if len(flat) > _MAX_LINES:
        raise CannotShowError("it takes too many lines")
    return Snippet(lines=tuple(flat), call=ast.unparse(shown))


@dataclass
class _Builder:
    module: ast.Module
    values: Mapping[str, str | None]
    parameters: frozenset[str]
    _needed: set[str] = field(default_factory=set)
    _imports: list[str] = field(default_factory=list)
    _tables: list[str] = field(default_factory=list)
    _loop_names: set[str] = field(default_factory=set)

    def literal_names(self, node: ast.AST) -> ast.AST:
        """Return a copy in which parameters are literals, where they are short."""
        literals = {
            name: value
            for name, value in self.values.items()
            if name in self.parameters | self._loop_names
            and value is not None
            and len(value) <= _MAX_LITERAL
            and _is_literal(value)
        }
        copied: ast.AST = _Substitution(literals).visit(parse_source(ast.unparse(node)).body[0])
        return copied

    def note_loops(self, before: list[ast.stmt]) -> None:
        """Note the names that loops around the statement bind."""
        for item in before:
            if isinstance(item, ast.For):
                nodes = ast.walk(item.target)
                self._loop_names |= {n.id for n in nodes if isinstance(n, ast.Name)}

    def need(self, node: ast.AST) -> None:
        """Note the names a piece of code reads."""
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_store(n)}
        bound |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        for item in ast.walk(node):
            if isinstance(item, ast.Name) and not _is_store(item) and item.id not in bound:
                if item.id in ("self", "cls"):
                    raise CannotShowError("it needs the test's object")
                if item.id not in _BUILT_IN:
                    self._needed.add(item.id)

    def slice(self, before: list[ast.stmt]) -> list[str]:
        """Return the statements that define or change needed names, then define the rest."""
        kept: list[str] = []
        for item in reversed(before):
            touched = _find_touched(item) & self._needed
            if not touched or isinstance(item, (ast.Assert, ast.For, ast.With)):
                continue
            if isinstance(item, (ast.Assign, ast.AnnAssign)):
                reads = {
                    n.id for n in ast.walk(item) if isinstance(n, ast.Name) and not _is_store(n)
                }
                if not _find_defined([item]) & reads:
                    self._needed -= touched
            shown = self.literal_names(item)
            self.need(shown)
            kept.append(ast.unparse(shown))
        # What the remaining names are: literals, imports, tables of the module.
        local, done = _find_defined(before), set[str]()
        while self._needed - done:
            name = min(self._needed - done)
            done.add(name)
            value = self.values.get(name)
            if name in self.parameters | self._loop_names:
                if value is None or len(value) > _MAX_LITERAL or not _is_literal(value):
                    raise CannotShowError(f"{name!r} is no literal")
                self._tables.insert(0, f"{name} = {value}")
            elif name not in local:
                self._tables[:0] = self._global(name)
        return [*self._tables, *reversed(kept)]

    def top_lines(self) -> list[str]:
        """Return the imports that are needed."""
        return sorted(set(self._imports))

    def _global(self, name: str) -> list[str]:
        for node in self.module.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    if (alias.asname or alias.name.split(".")[0]) == name:
                        self._imports.append(_import_line(node, alias))
                        return []
            elif name in _find_defined([node]):
                if isinstance(node, ast.If | ast.Try) or getattr(node, "decorator_list", []):
                    break
                self.need(node)
                return [ast.unparse(node)]
        raise CannotShowError(f"{name!r} comes from the test's surroundings")


class _Substitution(ast.NodeTransformer):
    def __init__(self, literals: Mapping[str, str]) -> None:
        self._literals = literals

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Put a literal in the place of a name that is read."""
        if _is_store(node) or node.id not in self._literals:
            return node
        return parse_source(self._literals[node.id], mode="eval").body


def _path_to(body: list[ast.stmt], statement: ast.stmt) -> list[ast.stmt] | None:
    """Return the statements before `statement` on the way to it; None if it is not below."""
    for index, item in enumerate(body):
        if item is statement:
            return body[:index]
        if isinstance(item, (ast.For, ast.With, ast.If, ast.Try, ast.While)):
            for name in ("body", "orelse", "finalbody"):
                inner = _path_to(getattr(item, name, []), statement)
                if inner is not None:
                    return [*body[:index], item, *inner]
    return None


def _is_store(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_literal(text: str) -> bool:
    try:
        with parsing:
            ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _find_touched(item: ast.stmt) -> set[str]:
    """Return the names a statement binds, or may change by calling a method of."""
    found = _find_defined([item])
    if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
        root: ast.AST = item.value.func
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name):
            found.add(root.id)
        found |= {a.id for a in item.value.args if isinstance(a, ast.Name)}
    if isinstance(item, (ast.Assign, ast.AugAssign, ast.Delete)):
        targets = [item.target] if isinstance(item, ast.AugAssign) else item.targets
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    found.add(node.id)
    return found


def _find_defined(items: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for item in items:
        if isinstance(item, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(item.name)
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            found |= {a.asname or a.name.split(".")[0] for a in item.names}
        elif not isinstance(item, (ast.For, ast.With)):
            found |= {n.id for n in ast.walk(item) if isinstance(n, ast.Name) and _is_store(n)}
    return found


def _import_line(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level or any(part.startswith(("test", "conftest")) for part in module.split(".")):
            raise CannotShowError("it needs a module of the tests")
        return ast.unparse(ast.ImportFrom(module=node.module, names=[alias], level=0))
    return ast.unparse(ast.Import(names=[alias]))
