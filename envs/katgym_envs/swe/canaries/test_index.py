"""Index of a module's tests, and of those that each part of the module can affect.

It knows what pytest collects by default: functions `test*`, in classes `Test*` or derived from
another class (`unittest.TestCase`, or one that is). Not here: what is changed in a part.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_FIXED_METHODS = {
    "setUp", "tearDown", "setUpClass", "tearDownClass", "asyncSetUp", "asyncTearDown",
    "setup_method", "teardown_method", "setup_class", "teardown_class",
}  # fmt: skip
_FIXED_FUNCTIONS = {"setup_module", "setup_function", "setUpModule"}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A statement of the module or of one of its classes."""

    node: ast.stmt
    owner: ast.ClassDef | None
    names: frozenset[str]
    """What it defines."""
    references: frozenset[str]
    """Names it reads, and parameters (fixtures); `.name` for attributes of self or a class."""
    is_test: bool


@dataclass(frozen=True, slots=True)
class TestIndex:
    """The parts of a module and the tests each of them can affect."""

    __test__ = False

    parts: tuple[Part, ...]
    tests_of: dict[Part, tuple[str, ...]] = field(default_factory=dict)
    """Part -> qualified names of tests; those that affect none are left out."""

    @classmethod
    def of(cls, tree: ast.Module) -> TestIndex:
        """Return the index of a parsed module."""
        parts: tuple[Part, ...] = ()
        for node in flat(tree.body):
            if isinstance(node, ast.ClassDef):
                parts += tuple(_part(child, node) for child in flat(node.body))
            else:
                parts += (_part(node, None),)
        classes = {c.name: c for c in tree.body if isinstance(c, ast.ClassDef)}
        affected: dict[Part, dict[str, None]] = {}
        for qualname, test, chain in _tests(parts, classes):
            for part in _reachable(test, chain, parts):
                affected.setdefault(part, {})[qualname] = None
        return cls(parts, {part: tuple(affected[part]) for part in parts if part in affected})

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the qualified names of all tests, in order."""
        found = {
            q: None for part in self.parts if part.is_test for q in self.tests_of.get(part, ())
        }
        return tuple(found)


def is_test_name(name: str) -> bool:
    """Return whether pytest takes a function of this name for a test."""
    return name.startswith("test")


def is_collected(node: ast.ClassDef) -> bool:
    """Return whether pytest looks for tests in a class; one with any base may be a TestCase."""
    return node.name.startswith("Test") or bool(node.bases)


def is_fixture(node: Function) -> bool:
    """Return whether a function is a fixture, whatever it is named."""
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those of `if` and `try` in their place."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from flat([child for child in ast.iter_child_nodes(node)
                              if isinstance(child, ast.stmt)])  # fmt: skip
        else:
            yield node


def _part(node: ast.stmt, owner: ast.ClassDef | None) -> Part:
    names: set[str] = set()
    references: set[str] = set()
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        names.add(node.name)
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            is_store = isinstance(child.ctx, ast.Store) and not isinstance(node, FUNCTIONS)
            (names if is_store else references).add(child.id)
        elif isinstance(child, ast.arg):
            references.add(child.arg)
        elif isinstance(child, ast.Attribute):
            references.add("." + child.attr)
    is_test = isinstance(node, FUNCTIONS) and is_test_name(node.name) and not is_fixture(node)
    return Part(node, owner, frozenset(names), frozenset(references), is_test)


def _tests(
    parts: tuple[Part, ...], classes: dict[str, ast.ClassDef]
) -> Iterator[tuple[str, Part, list[ast.ClassDef]]]:
    """Yield (qualified name, part, classes it is looked up in) for every test, in order."""
    for part in parts:
        if part.is_test and part.owner is None:
            yield next(iter(part.names)), part, []
    for owner in classes.values():
        if not is_collected(owner):
            continue
        chain = _chain(owner, classes)
        seen: set[str] = set()
        for ancestor in chain:
            for part in parts:
                name = next(iter(part.names), "")
                if part.is_test and part.owner is ancestor and name not in seen:
                    seen.add(name)
                    yield f"{owner.name}::{name}", part, chain


def _chain(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class and its bases in this module, itself first."""
    chain = [node]
    for ancestor in chain:
        for base in ancestor.bases:
            found = classes.get(base.id) if isinstance(base, ast.Name) else None
            if found is not None and found not in chain:
                chain.append(found)
    return chain


def _reachable(test: Part, chain: list[ast.ClassDef], parts: tuple[Part, ...]) -> list[Part]:
    """Return the parts a test uses, itself first: what it names, and what runs before it."""
    found = [test]
    found += [part for part in parts if _runs_before(part, chain) and part is not test]
    for part in found:
        for other in parts:
            if other in found:
                continue
            if other.owner is None:
                is_used = not other.names.isdisjoint(part.references)
            else:
                is_used = other.owner in chain and any(
                    "." + name in part.references for name in other.names
                )
            if is_used:
                found.append(other)
    return found


def _runs_before(part: Part, chain: list[ast.ClassDef]) -> bool:
    if not isinstance(part.node, FUNCTIONS):
        return False
    if any("autouse" in ast.unparse(d) for d in part.node.decorator_list):
        return part.owner is None or part.owner in chain
    if part.owner is None:
        return part.node.name in _FIXED_FUNCTIONS
    return part.owner in chain and part.node.name in _FIXED_METHODS
