"""Replacements that an operator makes of one node, each once.

Not here: the operators (`operators/`), whether it fits in its place, putting it in (`mutate.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import libcst as cst
from libcst.metadata import CodeRange

from katgym_plugin_swe_factory.mutation.operators import Operator
from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement, code


def variants_of(operator: Operator, node: cst.CSTNode, place: NodePlace) -> tuple[Replacement, ...]:
    """Return the replacements that read differently from the node and from each other."""
    by_text: dict[str, Replacement] = {}
    replacements: list[Replacement] = []
    # What the spaces around do not allow, as in `raise(x)`, is no plausible bug: it is left out.
    with contextlib.suppress(cst.CSTValidationError):
        replacements.extend(operator(node, place))
    for replacement in replacements:
        if isinstance(replacement, cst.RemovalSentinel):
            text = ""
        elif isinstance(replacement, cst.FlattenSentinel):
            text = "".join(code(part) for part in replacement)
        else:
            text = code(replacement)
        by_text.setdefault(text, replacement)
    by_text.pop(code(node), None)
    return tuple(by_text.values())


def is_tight(lines: Sequence[str], where: CodeRange) -> bool:
    """Return whether a letter or digit stands right before or behind a node and its brackets."""
    before = lines[where.start.line - 1][: where.start.column].rstrip("(")[-1:]
    behind = lines[where.end.line - 1][where.end.column :].lstrip(")")[:1]
    return any(c.isalnum() or c == "_" for c in (before, behind))
