"""Place of a node in its module: what operators need to know besides the node.

Not here: which nodes are left alone (`exclusions.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

# What takes a node's place: another node, several statements, or nothing.
Replacement = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]

_EMPTY = cst.Module(body=())


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The surroundings of one node."""

    ancestors: tuple[cst.CSTNode, ...]
    """From the module down to the parent."""
    qualname: str
    attributes: tuple[str, ...]
    """Attributes of `self` that the innermost class sets, sorted."""

    @property
    def parent(self) -> cst.CSTNode:
        """Return the node right above."""
        return self.ancestors[-1]

    @property
    def function(self) -> cst.FunctionDef | None:
        """Return the innermost function around it."""
        found = (node for node in reversed(self.ancestors) if isinstance(node, cst.FunctionDef))
        return next(found, None)


def code(node: cst.CSTNode) -> str:
    """Return a node's source without what is around it."""
    return _EMPTY.code_for_node(node)


def name_of(node: cst.CSTNode | None) -> str:
    """Return the last part of a name or attribute, "" for anything else."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def is_text(node: cst.CSTNode) -> bool:
    """Return whether a node is a string literal of any kind."""
    return isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString))


def in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an expression in parentheses, if it could bind less tightly than what is around."""
    loose = (
        cst.BooleanOperation,
        cst.IfExp,
        cst.Lambda,
        cst.NamedExpr,
        cst.Comparison,
        cst.Yield,
        cst.Await,
        cst.UnaryOperation,
        cst.Tuple,
    )
    if isinstance(node, loose) and not node.lpar:
        return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return node
