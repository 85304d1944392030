"""Gives the tests of a module names that tell nothing, and takes out comments and docstrings.

Lines stay where they are. Fixtures, helpers and set-up methods keep their names; so does a test
whose name also stands for something else in its module, and one inherited from another module. Not
here: the module's file name (`grading/`).
"""

from __future__ import annotations

import ast
import random
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from katgym_envs.swe.canaries.canary import Edit
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.canaries.test_index import (
    FUNCTIONS,
    Function,
    flat,
    is_collected,
    is_fixture,
    is_test_name,
)

_COOKIE = re.compile(rb"coding[:=]")
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A module whose tests have random names.

    Example:
        Renamed(source=b"def test_9f86d0(): ...", names={"test_9f86d0": "test_add"})
    """

    source: bytes
    names: Mapping[str, str]
    """New name of a function or class -> its name in the module; one map for all scopes."""

    def original(self, qualname: str) -> str:
        """Return the qualified name (`Class::function`) that a new one stands for."""
        return "::".join(self.names.get(part, part) for part in qualname.split("::"))

    def rename(self, qualname: str) -> str:
        """Return the new qualified name of a test."""
        new = {old: name for name, old in self.names.items()}
        return "::".join(new.get(part, part) for part in qualname.split("::"))


def rename_tests(source: bytes, seed: int) -> Renamed:
    """Return the module with names drawn from `seed`; equal seeds give equal bytes."""
    text = ModuleText(source)
    rng = random.Random(seed)
    functions, classes = _renameable(text.tree)
    new = {name: f"test_{rng.getrandbits(40):010x}" for name in functions}
    # A base class pytest does not collect by its name must not get a name it collects.
    new |= {
        name: f"{'Test' if name.startswith('Test') else 'Case'}{rng.getrandbits(40):010X}"
        for name in classes
    }
    edits = [*_name_edits(text, new), *_docstring_edits(text)]
    edits += [
        Edit(start, end, ("",))
        for kind, start, end in text.tokens
        if kind == tokenize.COMMENT
        and not (text.line_of(start) <= 2 and _COOKIE.search(source, start, end))
    ]
    pieces: list[bytes] = []
    position = 0
    for edit in sorted(edits, key=lambda e: e.start):
        pieces += [source[position : edit.start], str(edit.parts[0]).encode()]
        position = edit.end
    return Renamed(
        source=b"".join([*pieces, source[position:]]),
        names={name: old for old, name in new.items()},
    )


def _renameable(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Return the names of test functions and test classes that stand for nothing else."""
    functions: dict[str, None] = {}
    classes: dict[str, None] = {}
    for node in flat(tree.body):
        if isinstance(node, FUNCTIONS) and _is_test(node):
            functions[node.name] = None
        elif isinstance(node, ast.ClassDef):
            methods = [m for m in flat(node.body) if isinstance(m, FUNCTIONS) and _is_test(m)]
            functions |= {method.name: None for method in methods}
            if is_collected(node) and (methods or node.name.startswith("Test")):
                classes[node.name] = None
    taken = _other_bindings(tree)
    return [n for n in functions if n not in taken], [n for n in classes if n not in taken]


def _is_test(node: Function) -> bool:
    return is_test_name(node.name) and not is_fixture(node) and node.name.isascii()


def _other_bindings(tree: ast.Module) -> set[str]:
    """Return names that are variables, parameters, imports or texts: renaming might break them."""
    taken: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            taken.add(node.id)
        elif isinstance(node, ast.arg):
            taken.add(node.arg)
        elif isinstance(node, ast.alias):
            taken.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            taken.update(_WORD.findall(node.value))  # "Mixin.method" names both
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            taken.update(node.names)
    return taken


def _name_edits(text: ModuleText, new: Mapping[str, str]) -> Iterator[Edit]:
    classes = {name for name in new if new[name].startswith(("Test", "Case"))}
    for node in ast.walk(text.tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name in new:
            pattern = rb"(?:async\s+)?(?:def|class)\s+"
            found = re.compile(pattern).match(text.source, text.span(node)[0])
            if found:
                end = found.end() + len(node.name)
                yield Edit(found.end(), end, (new[node.name],))
        elif isinstance(node, ast.Name) and node.id in new:
            yield Edit(*text.span(node), (new[node.id],))
        elif isinstance(node, ast.Attribute) and node.attr in new and _is_own(node.value, classes):
            end = text.span(node)[1]
            yield Edit(end - len(node.attr), end, (new[node.attr],))


def _is_own(value: ast.expr, classes: set[str]) -> bool:
    """Return whether an attribute is looked up in a test class."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in {"self", "cls", "super", *classes}


def _docstring_edits(text: ModuleText) -> Iterator[Edit]:
    """Yield edits for docstrings of the module and its tests; a helper's may be tested."""
    nodes: list[ast.Module | ast.ClassDef | Function] = [text.tree]
    for node in flat(text.tree.body):
        if isinstance(node, ast.ClassDef):
            methods = [m for m in flat(node.body) if isinstance(m, FUNCTIONS) and _is_test(m)]
            nodes += [node, *methods]
        elif isinstance(node, FUNCTIONS) and _is_test(node):
            nodes.append(node)
    for documented in nodes:
        first = documented.body[0] if documented.body else None
        if not isinstance(first, ast.Expr) or ast.get_docstring(documented, clean=False) is None:
            continue
        start, end = text.span(first)
        lines = text.source.count(b"\n", start, end)
        yield Edit(start, end, ('"""' + "\n" * lines + '"""',))
