"""Operators on values: arithmetic, constants, and bounds that are off by one.

Not here: default values of parameters (`calls.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from katgym_plugin_swe_factory.mutation.place import (
    NodePlace,
    Replacement,
    in_parentheses,
    is_text,
    name_of,
)

_ARITHMETIC: dict[type[cst.CSTNode], type[cst.CSTNode]] = {
    cst.Add: cst.Subtract,
    cst.Subtract: cst.Add,
    cst.Multiply: cst.FloorDivide,
    cst.Divide: cst.Multiply,
    cst.FloorDivide: cst.Multiply,
    cst.Modulo: cst.FloorDivide,
    cst.Power: cst.Multiply,
    cst.BitAnd: cst.BitOr,
    cst.BitOr: cst.BitAnd,
    cst.BitXor: cst.BitOr,
    cst.LeftShift: cst.RightShift,
    cst.RightShift: cst.LeftShift,
    cst.AddAssign: cst.SubtractAssign,
    cst.SubtractAssign: cst.AddAssign,
    cst.MultiplyAssign: cst.AddAssign,
    cst.DivideAssign: cst.MultiplyAssign,
    cst.FloorDivideAssign: cst.MultiplyAssign,
    cst.BitAndAssign: cst.BitOrAssign,
    cst.BitOrAssign: cst.BitAndAssign,
}
_ORDERED = (cst.Subtract, cst.Divide, cst.FloorDivide, cst.Modulo, cst.Power)
_SEQUENCES = (cst.List, cst.Tuple, cst.ListComp)
_NEAR_TEXT = {
    " ": "_", "_": "-", "-": "_", ",": ";", ".": ",", ":": ";", "/": "-", "\\": "/", "'": '"',
}  # fmt: skip


def change_arithmetic(
    node: cst.BinaryOperation | cst.AugAssign, place: NodePlace
) -> Iterator[Replacement]:
    """`+` becomes `-`, `*` becomes `//`, `&` becomes `|`; also in `+=` and its like."""
    operands = [node.value] if isinstance(node, cst.AugAssign) else [node.left, node.right]
    if any(is_text(operand) or isinstance(operand, _SEQUENCES) for operand in operands):
        return
    old = node.operator
    new = _ARITHMETIC.get(type(old))
    if new is not None:
        spaces = {
            "whitespace_before": old.whitespace_before,  # type: ignore[union-attr]  # every one has it
            "whitespace_after": old.whitespace_after,  # type: ignore[union-attr]  # every one has it
        }
        yield node.with_changes(operator=new(**spaces))


def swap_operands(node: cst.BinaryOperation, place: NodePlace) -> Iterator[Replacement]:
    """`a - b` becomes `b - a`; `"x" + y` becomes `y + "x"`."""
    has_text = is_text(node.left) or is_text(node.right)
    if isinstance(node.operator, _ORDERED) and not has_text:
        yield node.with_changes(left=_tight(node.right), right=_tight(node.left))
    elif isinstance(node.operator, cst.Add) and has_text:
        yield node.with_changes(left=node.right, right=_tight(node.left))


def change_constant(
    node: cst.Integer | cst.Float | cst.SimpleString | cst.Name, place: NodePlace
) -> Iterator[Replacement]:
    """A number, a text or a truth value is another one."""
    if _is_handled_elsewhere(place):
        return
    yield from other_constants(node)


def other_constants(node: cst.CSTNode) -> Iterator[Replacement]:
    """Yield constants near a constant; nothing for any other node."""
    if isinstance(node, cst.Integer):
        value = node.evaluated_value
        yield node.with_changes(value=str(value + 1))
        if value > 0:
            yield node.with_changes(value=str(value - 1))
    elif isinstance(node, cst.Float):
        yield node.with_changes(value=repr(node.evaluated_value * 2 or 1.0))
    elif isinstance(node, cst.SimpleString):
        yield from _other_texts(node)
    elif isinstance(node, cst.Name) and node.value in ("True", "False"):
        yield node.with_changes(value="False" if node.value == "True" else "True")


def shift_by_one(node: cst.Index | cst.Slice | cst.Call, place: NodePlace) -> Iterator[Replacement]:
    """An index, a bound of a slice, an argument of `range` is one more or one less."""
    if isinstance(node, cst.Index):
        if _integer(node.value) is not None:
            yield from (node.with_changes(value=other) for other in _shift(node.value))
    elif isinstance(node, cst.Slice):
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            if bound is not None:
                yield from (node.with_changes(**{side: other}) for other in _shift(bound))
    elif name_of(node.func) == "range" and not any(arg.star or arg.keyword for arg in node.args):
        for i, arg in enumerate(node.args[:2]):
            for other in _shift(arg.value):
                args = [*node.args[:i], arg.with_changes(value=other), *node.args[i + 1 :]]
                yield node.with_changes(args=args)


def _is_handled_elsewhere(place: NodePlace) -> bool:
    """Return whether a constant is a bound (`off_by_one`), a default, or the text of a slot."""
    above = [node for node in place.ancestors if not isinstance(node, cst.UnaryOperation)][-2:]
    parent = above[-1]
    if isinstance(parent, (cst.Slice, cst.Param)):
        return True
    if isinstance(parent, cst.Index):
        return not isinstance(parent.value, cst.SimpleString)  # row["name"]
    if isinstance(parent, (cst.ImportAlias, cst.Attribute, cst.NameItem, cst.Return)):
        return isinstance(parent, (cst.ImportAlias, cst.NameItem))
    is_argument = isinstance(parent, cst.Arg) and len(above) > 1
    if is_argument and isinstance(above[-2], cst.Call):
        return name_of(above[-2].func) in ("range", "getattr", "hasattr", "setattr", "isinstance")
    return False


def _integer(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = _integer(node.expression)
        return None if inner is None else -inner
    return None


def _shift(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    number = _integer(node)
    if number is None:
        if not isinstance(node, cst.Name) or node.value != "None":
            yield cst.BinaryOperation(_tight(node), cst.Add(), cst.Integer("1"))
            yield cst.BinaryOperation(_tight(node), cst.Subtract(), cst.Integer("1"))
        return
    # From 0 down to -1 is the other end, so from 0 it goes up only.
    for other in (number + 1, number - 1) if number != 0 else (1,):
        digits: cst.BaseExpression = cst.Integer(str(abs(other)))
        yield cst.UnaryOperation(cst.Minus(), digits) if other < 0 else digits


def _tight(node: cst.BaseExpression) -> cst.BaseExpression:
    return node if isinstance(node, cst.UnaryOperation) else in_parentheses(node)


def _other_texts(node: cst.SimpleString) -> Iterator[Replacement]:
    """Yield a text with one letter less, and a single character exchanged for a similar one."""
    opening = len(node.prefix) + len(node.quote)
    raw = node.value
    body = raw[opening : len(raw) - len(node.quote)]
    if not body:
        yield node.with_changes(value=f"{raw[:opening]} {node.quote}")
        return
    if len(body) == 1:
        other = _NEAR_TEXT.get(body) or (chr(ord(body) + 1) if body.isalnum() else "")
        if other and other != node.quote and body.isascii():
            yield node.with_changes(value=raw[:opening] + other + node.quote)
        return
    if "\\" in body and "r" not in node.prefix.lower():
        return
    letters = [
        i for i, c in enumerate(body) if c.isalnum() and (i == 0 or body[i - 1] not in "\\{%")
    ]
    if letters:
        gone = letters[len(letters) // 2]
        yield node.with_changes(value=raw[:opening] + body[:gone] + body[gone + 1 :] + node.quote)
        swapped = body[gone].swapcase()
        if swapped != body[gone] and len(swapped) == 1:
            new = body[:gone] + swapped + body[gone + 1 :]
            yield node.with_changes(value=raw[:opening] + new + node.quote)
