"""Operators on conditions: comparisons, `and`/`or`, `not`, `if`.

Not here: loops and returns (`statements.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement, in_parentheses

_COMPARISONS: dict[type[cst.BaseCompOp], tuple[type[cst.BaseCompOp], ...]] = {
    cst.Equal: (cst.NotEqual,),
    cst.NotEqual: (cst.Equal,),
    cst.LessThan: (cst.LessThanEqual, cst.GreaterThan),
    cst.LessThanEqual: (cst.LessThan, cst.GreaterThanEqual),
    cst.GreaterThan: (cst.GreaterThanEqual, cst.LessThan),
    cst.GreaterThanEqual: (cst.GreaterThan, cst.LessThanEqual),
    cst.In: (cst.NotIn,),
    cst.NotIn: (cst.In,),
    cst.Is: (cst.IsNot,),
    cst.IsNot: (cst.Is,),
}
_NEGATED_BY_COMPARISON = (cst.Equal, cst.NotEqual, cst.In, cst.NotIn, cst.Is, cst.IsNot)


def change_comparison(node: cst.ComparisonTarget, place: NodePlace) -> Iterator[Replacement]:
    """`<` becomes `<=` or `>`, `==` becomes `!=`, `in` becomes `not in`."""
    old = node.operator
    for new in _COMPARISONS.get(type(old), ()):
        spaces = {
            "whitespace_before": old.whitespace_before,  # type: ignore[attr-defined]  # every one has it
            "whitespace_after": old.whitespace_after,  # type: ignore[attr-defined]  # every one has it
        }
        yield node.with_changes(operator=new(**spaces))


def swap_boolean(node: cst.BooleanOperation, place: NodePlace) -> Iterator[Replacement]:
    """`and` becomes `or`, and the other way round."""
    old = node.operator
    new = cst.Or if isinstance(old, cst.And) else cst.And
    yield node.with_changes(
        operator=new(whitespace_before=old.whitespace_before, whitespace_after=old.whitespace_after)
    )


def negate_condition(
    node: cst.If | cst.While | cst.CompIf, place: NodePlace
) -> Iterator[Replacement]:
    """A condition is negated, where neither a comparison nor the branches can be swapped."""
    if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
        return
    test = node.test
    if isinstance(node, cst.While) and isinstance(test, (cst.Name, cst.Integer)):
        return
    is_comparison = isinstance(test, cst.Comparison) and len(test.comparisons) == 1
    if is_comparison and isinstance(test.comparisons[0].operator, _NEGATED_BY_COMPARISON):  # type: ignore[attr-defined]  # is_comparison
        return
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return
    yield node.with_changes(test=negate(test), **_space_before_test(node))


def remove_not(node: cst.UnaryOperation, place: NodePlace) -> Iterator[Replacement]:
    """`not x` becomes `x`, `-x` becomes `x`."""
    if isinstance(node.operator, cst.Not):
        yield in_parentheses(node.expression)
    elif isinstance(node.operator, cst.Minus) and not isinstance(
        node.expression, (cst.Integer, cst.Float)
    ):
        yield node.expression


def swap_branches(node: cst.If | cst.IfExp, place: NodePlace) -> Iterator[Replacement]:
    """What is done if, and what is done else, change places."""
    if isinstance(node, cst.IfExp):
        yield node.with_changes(
            body=in_parentheses(node.orelse) if isinstance(node.orelse, cst.IfExp) else node.orelse,
            orelse=node.body,
        )
    elif isinstance(node.orelse, cst.Else):
        yield node.with_changes(
            body=node.orelse.body, orelse=node.orelse.with_changes(body=node.body)
        )


def remove_conditional(node: cst.If, place: NodePlace) -> Iterator[Replacement]:
    """An `if` goes: with all it guards, or only the condition."""
    if isinstance(place.parent, cst.If):  # an elif
        yield node.orelse if node.orelse is not None else cst.RemoveFromParent()
        return
    if isinstance(node.orelse, cst.Else):
        yield cst.FlattenSentinel(statements_of(node.orelse.body))
    elif node.orelse is None:
        yield drop_statement(node, place)
    yield cst.FlattenSentinel(statements_of(node.body))


def negate(test: cst.BaseExpression) -> cst.BaseExpression:
    """Return `not test`, in parentheses where they are needed."""
    inner = test if isinstance(test, (cst.Comparison, cst.UnaryOperation)) else in_parentheses(test)
    return cst.UnaryOperation(operator=cst.Not(), expression=inner)


def drop_statement(node: cst.CSTNode, place: NodePlace) -> Replacement:
    """Return what stands where a statement was: nothing, or `pass` if nothing else is left."""
    siblings = getattr(place.parent, "body", ())
    if len(siblings) > 1 or isinstance(place.parent, cst.Module):
        return cst.RemoveFromParent()
    return cst.SimpleStatementLine(body=[cst.Pass()])


def statements_of(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    """Return the statements of a block, also of one on the line of its header."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body=body.body)]
    return [part for part in body.body if isinstance(part, cst.BaseStatement)]


def _space_before_test(node: cst.If | cst.While | cst.CompIf) -> dict[str, cst.CSTNode]:
    """`if(x)` needs a space before `not`."""
    if isinstance(node, cst.While):
        return {"whitespace_after_while": cst.SimpleWhitespace(" ")}
    return {"whitespace_before_test": cst.SimpleWhitespace(" ")}
