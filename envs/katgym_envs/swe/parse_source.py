"""Parses Python, or lets libraries do so, in any thread.

Not here: what is looked for in it.
"""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Literal, overload

parsing = threading.RLock()
"""Held while something builds Python syntax trees: here, and around libraries that may.

CPython 3.11 and 3.12 count the depth of a tree they build per interpreter, not per thread, and
raise `SystemError` ("AST constructor recursion depth mismatch") when two threads build at once.
`ast.literal_eval` builds one, too, and libcst calls it.
"""
# TODO(python>=3.13): drop when 3.12 is no longer supported.


@overload
def parse_source(source: str | bytes, *, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parse_source(source: str | bytes, *, mode: Literal["eval"]) -> ast.Expression: ...
def parse_source(source: str | bytes, *, mode: str = "exec") -> ast.Module | ast.Expression:
    """Return the syntax tree; raises what `ast.parse` raises."""
    with parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes, say: the source is not ours
        try:
            tree = ast.parse(source, mode=mode)
        except SystemError:
            # A traceback was formatted meanwhile, here by a finalizer or in another thread: that
            # builds trees, too, and holds no lock.
            tree = ast.parse(source, mode=mode)
    assert isinstance(tree, (ast.Module, ast.Expression))
    return tree
