"""Operators on calls, parameters and attributes.

Not here: statements that are nothing but a call (`statements.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from katgym_plugin_swe_factory.mutation.operators.values import other_constants
from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement, code, name_of

_PAIRS = (
    ("append", "extend"), ("startswith", "endswith"), ("lower", "upper"), ("lstrip", "rstrip"),
    ("find", "rfind"), ("index", "rindex"), ("split", "rsplit"), ("partition", "rpartition"),
    ("keys", "values"), ("add", "discard"), ("union", "intersection"), ("ljust", "rjust"),
    ("isdigit", "isalpha"), ("isupper", "islower"), ("popleft", "pop"), ("match", "search"),
    ("appendleft", "append"), ("title", "capitalize"), ("encode", "decode"),
    ("issubset", "issuperset"), ("removeprefix", "removesuffix"),
)  # fmt: skip
_METHODS = {b: a for a, b in _PAIRS} | dict(_PAIRS) | {
    "strip": "lstrip", "fullmatch": "match", "setdefault": "get", "splitlines": "split",
    "subn": "sub",
}  # fmt: skip
_FUNCTIONS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "iter",
    "floor": "ceil", "ceil": "floor", "sum": "max", "abs": "int", "int": "float", "round": "int",
    "tuple": "list", "set": "list", "takewhile": "dropwhile", "dropwhile": "takewhile",
}  # fmt: skip
_ORDERLESS = {
    "isinstance", "issubclass", "hasattr", "getattr", "setattr", "delattr", "super", "min", "max",
    "type", "property",
}  # fmt: skip


def swap_arguments(node: cst.Call, place: NodePlace) -> Iterator[Replacement]:
    """Two neighbouring positional arguments change places."""
    if name_of(node.func) in _ORDERLESS:
        return
    for i, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if any(arg.star or arg.keyword for arg in (one, other)):
            continue
        if code(one.value) == code(other.value):
            continue
        args = list(node.args)
        args[i] = one.with_changes(value=other.value)
        args[i + 1] = other.with_changes(value=one.value)
        yield node.with_changes(args=args)


def drop_keyword(node: cst.Call, place: NodePlace) -> Iterator[Replacement]:
    """A keyword argument is not passed."""
    if name_of(node.func) == "dict":
        return
    for i, arg in enumerate(node.args):
        if arg.keyword is None:
            continue
        args = [*node.args[:i], *node.args[i + 1 :]]
        if i == len(node.args) - 1 and args:
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        yield node.with_changes(args=args)


def swap_method(node: cst.Call, place: NodePlace) -> Iterator[Replacement]:
    """A method or function is called instead of its counterpart: `min`, `startswith`."""
    function = node.func
    if isinstance(function, cst.Attribute) and function.attr.value in _METHODS:
        attr = function.attr.with_changes(value=_METHODS[function.attr.value])
        yield node.with_changes(func=function.with_changes(attr=attr))
    elif isinstance(function, cst.Name) and function.value in _FUNCTIONS:
        yield node.with_changes(func=function.with_changes(value=_FUNCTIONS[function.value]))


def change_default(node: cst.Param, place: NodePlace) -> Iterator[Replacement]:
    """A parameter has another default."""
    if node.default is None:
        return
    for other in other_constants(node.default):
        yield node.with_changes(default=other)
    if isinstance(node.default, cst.Name) and node.default.value == "None":
        yield node.with_changes(default=cst.Integer("0"))


def swap_attribute(node: cst.Attribute, place: NodePlace) -> Iterator[Replacement]:
    """`self.a` becomes `self.b`, another attribute that `__init__` sets."""
    if not isinstance(node.value, cst.Name) or node.value.value != "self":
        return
    names = place.attributes
    if node.attr.value not in names or len(names) < 2:
        return
    own = names.index(node.attr.value)
    for step in (1, -1):
        other = names[(own + step) % len(names)]
        yield node.with_changes(attr=node.attr.with_changes(value=other))
