"""Documentation of a dataclass's fields: the strings that stand under them in its source.

Not here: what is made of it (`katgym.cli.options`, JSON Schemas).
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise


@functools.cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Return field -> its documentation in one line; fields without any are left out.

    A field of a base class has the base's, unless the class says more. Raises `OSError` where the
    source is not there, as in a program that was compiled whole.

    Example:
        >>> field_docs(Limits)["max_turns"]
        'Model calls.'
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ != "builtins":
            docs.update(_docs_of_module(base.__module__).get(base.__qualname__, {}))
    return docs


@functools.cache
def _docs_of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return qualified name of a class -> its fields' documentation."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {
        qualified: {
            field.target.id: " ".join(doc.value.value.split())
            for field, doc in pairwise(cls.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(doc, ast.Expr)
            and isinstance(doc.value, ast.Constant)
            and isinstance(doc.value.value, str)
        }
        for qualified, cls in _classes(tree.body, "")
    }


def _classes(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield classes with their qualified names, also those inside classes and functions."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _classes(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(node.body, f"{prefix}{node.name}.<locals>.")
