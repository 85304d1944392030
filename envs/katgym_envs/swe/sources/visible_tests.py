"""Takes graded test functions out of the test files an agent sees, with the tables only they use.

    files = without_functions(files, [("tests/test_a.py", "TestA::test_b")])

A test that a class inherits is taken out of the class that defines it, in whatever test file that
is. Not here: which functions are taken out (`making/`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from katgym.errors import UsageError
from katgym_envs.swe.parse_source import parse_source

Place = tuple[str, tuple[str, ...]]
"""A test file, and the names of classes and function that lead to a definition in it."""


class HiddenTestError(UsageError):
    """A test cannot be taken out: its definition is not in any of the test files."""


def without_functions(
    files: Mapping[str, bytes], functions: Iterable[tuple[str, str]]
) -> dict[str, bytes]:
    """Return the changed ones of the test files `files`, lacking these (path, qualname).

    Raises `HiddenTestError` for a function whose definition is not found.
    """
    index = _Index(files)
    removals: dict[str, set[tuple[str, ...]]] = {}
    for path, qualname in sorted(functions):
        where, names = index.find(path, tuple(qualname.split("::")))
        removals.setdefault(where, set()).add(names)
    changed: dict[str, bytes] = {}
    for path, chosen in removals.items():
        others = b"\n".join(content for p, content in files.items() if p != path)
        changed[path] = _removed(files[path].decode("utf-8"), chosen, others).encode("utf-8")
    return changed


@dataclass
class _Index:
    """Where classes and functions of the test files are defined."""

    files: Mapping[str, bytes]

    def find(self, path: str, names: tuple[str, ...]) -> Place:
        """Return the place of a test's definition, following base classes by name."""
        if names in self._definitions(path):
            return path, names
        queue = [(path, names[:-1])]
        seen: set[Place] = set()
        while queue:
            place = queue.pop(0)
            if place in seen:
                continue
            seen.add(place)
            definitions = self._definitions(place[0])
            found = (*place[1], names[-1])
            if found in definitions:
                return place[0], found
            node = definitions.get(place[1])
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    queue += self._classes(_last_name(base), place[0])
        raise HiddenTestError(f"no definition of test {'::'.join(names)!r} of {path!r} was found")

    def _classes(self, name: str, near: str) -> list[Place]:
        """Return the top-level classes of this name: of the same file, else of any."""
        if (name,) in self._definitions(near):
            return [(near, (name,))]
        paths = sorted(p for p in self.files if p.endswith(".py") and p != near)
        return [(p, (name,)) for p in paths if (name,) in self._definitions(p)]

    def _definitions(self, path: str) -> Mapping[tuple[str, ...], ast.stmt]:
        return _definitions(self.files.get(path, b""))


@lru_cache(maxsize=512)  # the same test files come with every task of a package
def _definitions(source: bytes) -> Mapping[tuple[str, ...], ast.stmt]:
    try:
        return dict(_walk(parse_source(source), ()))
    except (SyntaxError, ValueError):  # a file made to be broken is nobody's base class
        return {}


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _removed(source: str, functions: set[tuple[str, ...]], others: bytes) -> str:
    changed = _without(source, [n for n, _ in _walk(parse_source(source), ()) if n in functions])
    used = _used_names(source)
    while True:
        still_used = _used_names(changed)
        # Another test file may import a table.
        orphans: list[tuple[str, ...]] = [
            (name,)
            for name in _tables(changed)
            if name in used
            and name not in still_used
            and not re.search(rf"\b{name}\b".encode(), others)
        ]
        if not orphans:
            return changed
        changed = _without(changed, orphans)


def _walk(node: ast.AST, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Yield definitions with their names, and module-level assignments to one name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = (*prefix, child.name)
            yield name, child
            if isinstance(child, ast.ClassDef):
                yield from _walk(child, name)
        elif isinstance(child, (ast.If, ast.Try, ast.With)):
            yield from _walk(child, prefix)
        elif not prefix and isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                yield (targets[0].id,), child


def _without(source: str, names: list[tuple[str, ...]]) -> str:
    """Return the source without these statements; a block that would be empty gets `pass`."""
    tree = parse_source(source)
    doomed = {id(node) for name, node in _walk(tree, ()) if name in set(names)}
    lines = source.splitlines(keepends=True)
    cuts: dict[int, tuple[int, str]] = {}
    for parent in ast.walk(tree):
        for block in _blocks(parent):
            gone = [node for node in block if id(node) in doomed]
            for node in gone:
                start, end = _span(node, lines)
                is_empty = len(gone) == len(block) and node is gone[0] and parent is not tree
                cuts[start] = (end, " " * node.col_offset + "pass\n" if is_empty else "")
    kept: list[str] = []
    number = 0
    while number < len(lines):
        if number in cuts:
            number, filler = cuts[number]
            kept.append(filler)
        else:
            kept.append(lines[number])
            number += 1
    return "".join(kept)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _span(node: ast.stmt, lines: list[str]) -> tuple[int, int]:
    """Return the lines of a statement: decorators, comments right above it, blank lines above."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    while start > 0 and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while start > 0 and not lines[start - 1].strip():
        start -= 1
    return start, node.end_lineno or node.lineno


def _tables(source: str) -> list[str]:
    """Return the names that module-level assignments bind."""
    found = _walk(parse_source(source), ())
    names = [n[0] for n, node in found if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return [name for name in names if not name.startswith("__")]


def _used_names(source: str) -> set[str]:
    """Return the names that are read somewhere."""
    used: set[str] = set()
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
    return used
