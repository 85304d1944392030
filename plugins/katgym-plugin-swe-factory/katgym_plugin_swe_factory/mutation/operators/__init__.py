"""The mutation operators: each takes a node and its place and yields what could stand there.

Not here: where they may be used (`exclusions.py`), applying them (`mutate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import libcst as cst

from katgym_plugin_swe_factory.mutation.operators.calls import (
    change_default,
    drop_keyword,
    swap_arguments,
    swap_attribute,
    swap_method,
)
from katgym_plugin_swe_factory.mutation.operators.conditions import (
    change_comparison,
    negate_condition,
    remove_conditional,
    remove_not,
    swap_boolean,
    swap_branches,
)
from katgym_plugin_swe_factory.mutation.operators.statements import (
    change_exception,
    change_loop_exit,
    change_return,
    remove_statement,
    remove_wrapper,
)
from katgym_plugin_swe_factory.mutation.operators.values import (
    change_arithmetic,
    change_constant,
    shift_by_one,
    swap_operands,
)
from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement

# An operator is listed for the node types it takes, so its argument is one of them.
Operator = Callable[[Any, NodePlace], Iterator[Replacement]]

_TABLE: tuple[tuple[str, Operator, tuple[type[cst.CSTNode], ...]], ...] = (
    ("argument_swap", swap_arguments, (cst.Call,)),
    ("arithmetic", change_arithmetic, (cst.BinaryOperation, cst.AugAssign)),
    ("attribute_swap", swap_attribute, (cst.Attribute,)),
    ("boolean", swap_boolean, (cst.BooleanOperation,)),
    ("branch_swap", swap_branches, (cst.If, cst.IfExp)),
    ("compare", change_comparison, (cst.ComparisonTarget,)),
    ("condition_negate", negate_condition, (cst.If, cst.While, cst.CompIf)),
    ("condition_remove", remove_conditional, (cst.If,)),
    ("constant", change_constant, (cst.Integer, cst.Float, cst.SimpleString, cst.Name)),
    ("default", change_default, (cst.Param,)),
    ("exception", change_exception, (cst.Raise, cst.ExceptHandler)),
    ("keyword_drop", drop_keyword, (cst.Call,)),
    ("loop_exit", change_loop_exit, (cst.Break, cst.Continue)),
    ("method_swap", swap_method, (cst.Call,)),
    ("not_remove", remove_not, (cst.UnaryOperation,)),
    ("off_by_one", shift_by_one, (cst.Index, cst.Slice, cst.Call)),
    ("operand_swap", swap_operands, (cst.BinaryOperation,)),
    ("return", change_return, (cst.Return,)),
    ("statement_remove", remove_statement, (cst.SimpleStatementLine,)),
    ("wrapper_remove", remove_wrapper, (cst.Try, cst.With)),
)


OPERATORS: Mapping[type[cst.CSTNode], tuple[tuple[str, Operator], ...]] = {
    node_type: tuple((name, operator) for name, operator, types in _TABLE if node_type in types)
    for *_, all_types in _TABLE
    for node_type in all_types
}
"""Node type -> (name, operator) pairs."""
