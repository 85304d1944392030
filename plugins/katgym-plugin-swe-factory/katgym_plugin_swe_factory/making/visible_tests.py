"""Takes graded test functions out of the test files an agent sees, with the tables only they use.

    files = without_functions(files, [("tests/test_a.py", "TestA::test_b")])

A test that a class inherits is taken out of the class that defines it, in whatever test file that
is. Not here: which functions are taken out (`katgym_plugin_swe_factory`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
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
    removals: dict[str, set[tuple[str, ...]]] = {}
    for path, qualname in sorted(functions):
        where, names = _find(files, path, tuple(qualname.split("::")))
        removals.setdefault(where, set()).add(names)
    changed: dict[str, bytes] = {}
    for path, chosen in removals.items():
        others = b"\n".join(content for p, content in files.items() if p != path)
        source = files[path].decode("utf-8")
        used = _find_used_names(source)
        doomed = [name for name, _ in _walk(parse_source(source), ()) if name in chosen]
        # A table that only these functions used goes, then one that only such tables used.
        while doomed:
            source = _without(source, doomed)
            still_used = _find_used_names(source)
            doomed = [
                names
                for names, node in _walk(parse_source(source), ())
                if isinstance(node, (ast.Assign, ast.AnnAssign))
                and not names[0].startswith("__")
                and names[0] in used - still_used
                # Another test file may import it.
                and not re.search(rf"\b{names[0]}\b".encode(), others)
            ]
        changed[path] = source.encode("utf-8")
    return changed


def _find(files: Mapping[str, bytes], path: str, names: tuple[str, ...]) -> Place:
    """Return the place of a test's definition, following base classes by name."""
    if names in _definitions(files.get(path, b"")):
        return path, names
    queue = [(path, names[:-1])]
    seen: set[Place] = set()
    while queue:
        near, classes = place = queue.pop(0)
        if place in seen:
            continue
        seen.add(place)
        definitions = _definitions(files.get(near, b""))
        found = (*classes, names[-1])
        if found in definitions:
            return near, found
        node = definitions.get(classes)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                # The top-level classes of this name: of the same file, else of any.
                name = (getattr(base, "attr", "") or getattr(base, "id", ""),)
                others = sorted(p for p in files if p.endswith(".py") and p != near)
                paths = [near] if name in definitions else others
                queue += [(p, name) for p in paths if name in _definitions(files.get(p, b""))]
    raise HiddenTestError(f"no definition of test {'::'.join(names)!r} of {path!r} was found")


@lru_cache(maxsize=512)  # the same test files come with every task of a package
def _definitions(source: bytes) -> Mapping[tuple[str, ...], ast.stmt]:
    try:
        return dict(_walk(parse_source(source), ()))
    except (SyntaxError, ValueError):  # a file made to be broken is nobody's base class
        return {}


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
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if not isinstance(block, list):
                continue
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


def _span(node: ast.stmt, lines: list[str]) -> tuple[int, int]:
    """Return the lines of a statement: decorators, comments right above it, blank lines above."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    while start > 0 and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while start > 0 and not lines[start - 1].strip():
        start -= 1
    return start, node.end_lineno or node.lineno


def _find_used_names(source: str) -> set[str]:
    """Return the names that are read somewhere."""
    used: set[str] = set()
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
    return used
