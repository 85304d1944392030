"""Operators on statements: removed, unwrapped, returning or raising something else.

Not here: `if` (`conditions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from katgym_plugin_swe_factory.mutation.exclusions import is_left_alone
from katgym_plugin_swe_factory.mutation.operators.conditions import (
    drop_statement,
    negate,
    statements_of,
)
from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement, code, name_of

_EXCEPTIONS = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "LookupError": "ArithmeticError",
    "RuntimeError": "ValueError",
    "StopIteration": "GeneratorExit",
    "OSError": "ValueError",
    "ZeroDivisionError": "OverflowError",
    "OverflowError": "ZeroDivisionError",
    "Exception": "ArithmeticError",
    "UnicodeDecodeError": "KeyError",
    "UnicodeError": "KeyError",
    "AssertionError": "ValueError",
}


def remove_statement(node: cst.SimpleStatementLine, place: NodePlace) -> Iterator[Replacement]:
    """A call, or an assignment to something that exists already, is missing."""
    if len(node.body) != 1 or place.function is None or is_left_alone(node.body[0]):
        return
    statement = node.body[0]
    if isinstance(statement, cst.Expr):
        is_removable = isinstance(statement.value, cst.Call) and not is_left_alone(statement.value)
    elif isinstance(statement, cst.Assign):
        targets = [target.target for target in statement.targets]
        is_removable = all(_exists_before(target, node, place) for target in targets)
    else:
        is_removable = isinstance(statement, (cst.AugAssign, cst.Del))
    if is_removable:
        yield drop_statement(node, place)


def change_loop_exit(node: cst.Break | cst.Continue, place: NodePlace) -> Iterator[Replacement]:
    """`break` becomes `continue` and the other way round, or neither is there."""
    yield cst.Continue() if isinstance(node, cst.Break) else cst.Break()
    yield cst.Pass()


def change_return(node: cst.Return, place: NodePlace) -> Iterator[Replacement]:
    """Something else is returned: None, the opposite, a pair turned around."""
    value = node.value
    if value is None or name_of(value) in ("None", "True", "False"):
        return
    after = cst.SimpleWhitespace(" ")
    yield node.with_changes(value=cst.Name("None"), whitespace_after_return=after)
    is_condition = isinstance(value, (cst.BooleanOperation, cst.Comparison))
    if is_condition:
        yield node.with_changes(value=negate(value), whitespace_after_return=after)
    elif isinstance(value, cst.Tuple) and len(value.elements) == 2:
        one, other = value.elements
        if isinstance(one, cst.Element) and isinstance(other, cst.Element):
            swapped = [one.with_changes(value=other.value), other.with_changes(value=one.value)]
            yield node.with_changes(value=value.with_changes(elements=swapped))


def change_exception(
    node: cst.Raise | cst.ExceptHandler, place: NodePlace
) -> Iterator[Replacement]:
    """Another type of exception is raised, or caught."""
    if isinstance(node, cst.ExceptHandler):
        if isinstance(node.type, cst.Name) and node.type.value in _EXCEPTIONS:
            yield node.with_changes(type=cst.Name(_EXCEPTIONS[node.type.value]))
        elif isinstance(node.type, cst.Tuple) and len(node.type.elements) == 2:
            for element in node.type.elements:
                yield node.with_changes(type=element.value)
        return
    raised = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
    if not isinstance(raised, cst.Name) or raised.value == "NotImplementedError":
        return
    is_type = raised.value in _EXCEPTIONS or raised.value.endswith(("Error", "Exception"))
    if not is_type:
        return
    other = cst.Name(_EXCEPTIONS.get(raised.value, "ValueError"))
    if isinstance(node.exc, cst.Call):
        yield node.with_changes(exc=node.exc.with_changes(func=other))
    else:
        yield node.with_changes(exc=other)


def remove_wrapper(node: cst.Try | cst.With, place: NodePlace) -> Iterator[Replacement]:
    """What a `try` or `with` guards is done without it."""
    if isinstance(node, cst.With):
        if any(item.asname is not None for item in node.items) or node.asynchronous is not None:
            return
        yield cst.FlattenSentinel(statements_of(node.body))
        return
    statements = statements_of(node.body)
    for further in (node.orelse, node.finalbody):
        if further is not None:
            statements += statements_of(further.body)
    yield cst.FlattenSentinel(statements)
    if node.finalbody is not None and node.handlers:
        yield node.with_changes(finalbody=None)


def _exists_before(
    target: cst.BaseExpression, node: cst.SimpleStatementLine, place: NodePlace
) -> bool:
    """Return whether what is assigned to has a value without the assignment, or may have one."""
    if isinstance(target, (cst.Attribute, cst.Subscript)):
        return True
    function = place.function
    if not isinstance(target, cst.Name) or function is None:
        return False
    parameters = function.params
    all_parameters = (*parameters.params, *parameters.kwonly_params, *parameters.posonly_params)
    if target.value in {parameter.name.value for parameter in all_parameters}:
        return True
    for statement in getattr(function.body, "body", ()):
        if statement is node or statement in place.ancestors:
            return False
        if isinstance(statement, cst.SimpleStatementLine) and code(statement).strip().startswith(
            f"{target.value} ="
        ):
            return True
    return False
