"""Test modules rewritten so that a failing test tells what it compared, and with what values.

    source = instrument(source, {("test_a", 12)})          # run it on the base state
    observed = read_observation(result.message)

Both sides of the comparison on a statement are kept in local names, and whatever ends the test is
reported as JSON with its locals. Not here: wording it (`statement.py`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from katgym_envs.swe.parse_source import parse_source

LEFT, RIGHT = "katgym_left", "katgym_right"
_MARK = "katgym-observed:"
_MAX_TEXT = 600
_REPORTER = f"""
def katgym_report(error, names):
    import json
    if str(error).startswith({_MARK!r}):
        raise error
    kept = {{}}
    for name, value in list(names.items())[:80]:
        try:
            kept[name] = repr(value)[:{_MAX_TEXT}]
        except Exception:
            kept[name] = None
    told = {{"exception": type(error).__name__, "text": str(error)[:{_MAX_TEXT}], "names": kept}}
    raise AssertionError({_MARK!r} + json.dumps(told)) from None
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What ended a test, and its local names at that moment, as `repr` (None: it has none)."""

    exception: str
    text: str
    names: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def left(self) -> str | None:
        """Value of the left (or only) side of the comparison."""
        return self.names.get(LEFT)

    @property
    def right(self) -> str | None:
        """Value of the right side."""
        return self.names.get(RIGHT)


def instrument(source: str, targets: Iterable[tuple[str, int]]) -> str:
    """Return the module with these functions (qualname, line of the failing statement) observed."""
    tree = parse_source(source)
    for qualname, line in targets:
        function = find_function(tree, qualname)
        if function is None:
            continue
        _Sides(line).visit(function)
        caught = parse_source("try:\n    pass\nexcept BaseException as katgym_error:\n"
                           "    katgym_report(katgym_error, dict(locals()))").body[0]  # fmt: skip
        assert isinstance(caught, ast.Try)
        caught.body = function.body
        function.body = [caught]
    reporter = parse_source(_REPORTER).body
    at = _after_preamble(tree)
    tree.body[at:at] = reporter
    return ast.unparse(ast.fix_missing_locations(tree))


def read_observation(message: str) -> Observation | None:
    """Return what a failing observed test told in its message; None if it told nothing whole."""
    # pytest wraps nothing, but indents and repeats: the JSON is on the line of the mark.
    found = re.search(re.escape(_MARK) + r"(\{.*\})", message)
    if found is None:
        return None
    try:
        told = json.loads(found[1])
    except ValueError:
        return None
    return Observation(exception=told["exception"], text=told["text"], names=told["names"])


def find_function(tree: ast.Module, qualname: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of a test in its own module, or None."""
    body: list[ast.stmt] = tree.body
    *classes, name = qualname.split("::")
    for class_name in classes:
        found = [n for n in body if isinstance(n, ast.ClassDef) and n.name == class_name]
        if not found:
            return None
        body = found[-1].body
    functions = [
        n for n in body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name
    ]
    return functions[-1] if functions else None


def comparison(statement: ast.stmt) -> tuple[ast.expr, ast.expr | None, str] | None:
    """Return left side, right side and kind of an assertion statement.

    Kinds: "==" and other operators, "true", "false"; None for what is no plain assertion.
    """
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return test.left, test.comparators[0], _OPERATORS.get(type(test.ops[0]), "")
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return test.operand, None, "false"
        return test, None, "true"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in _METHODS and len(call.args) >= 2:
            return call.args[0], call.args[1], _METHODS[name]
        if name in _TRUTHS and call.args:
            return call.args[0], None, _TRUTHS[name]
    return None


_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_METHODS = {
    "assertEqual": "==", "assertEquals": "==", "assertListEqual": "==", "assertDictEqual": "==",
    "assertTupleEqual": "==", "assertSetEqual": "==", "assertMultiLineEqual": "==",
    "assertSequenceEqual": "==", "assertIs": "is", "assertIn": "in", "assertNotIn": "not in",
    "assertNotEqual": "!=", "assertAlmostEqual": "==",
}  # fmt: skip
_TRUTHS = {"assertTrue": "true", "assertFalse": "false", "assertIsNone": "None"}


class _Sides(ast.NodeTransformer):
    """Keeps the sides of the comparison on one line in local names."""

    def __init__(self, line: int) -> None:
        self._line = line

    def visit(self, node: ast.AST) -> ast.AST:
        """Rewrite the statement on the line; go into blocks, not into nested functions."""
        if isinstance(node, ast.stmt) and node.lineno == self._line:
            found = comparison(node)
            if found is not None:
                left, right, _ = found
                kept = {id(left): _name(LEFT, left)}
                if right is not None:
                    kept[id(right)] = _name(RIGHT, right)
                for below in ast.walk(node):
                    for name, value in ast.iter_fields(below):
                        if isinstance(value, list):
                            value[:] = [kept.get(id(item), item) for item in value]
                        elif id(value) in kept and not isinstance(below, ast.NamedExpr):
                            setattr(below, name, kept[id(value)])
                return node
        self.generic_visit(node)
        return node


def _name(name: str, value: ast.expr) -> ast.expr:
    return ast.NamedExpr(target=ast.Name(id=name, ctx=ast.Store()), value=value)


def _after_preamble(tree: ast.Module) -> int:
    """Return the index after the docstring and `from __future__` imports."""
    index = 0
    for index, node in enumerate(tree.body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not (is_text or is_future):
            return index
    return index
