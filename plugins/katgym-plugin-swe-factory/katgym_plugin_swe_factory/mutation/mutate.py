"""Finds the sites of a module and makes mutated sources; equal specs give equal bytes.

Not here: the changes themselves (`operators/`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from katgym.errors import UsageError, unknown_name
from katgym_envs.swe.parse_source import parse_source, parsing
from katgym_plugin_swe_factory.mutation.exclusions import is_left_alone
from katgym_plugin_swe_factory.mutation.operators import OPERATORS
from katgym_plugin_swe_factory.mutation.place import NodePlace, Replacement, code
from katgym_plugin_swe_factory.mutation.site import MutationSpec, Site
from katgym_plugin_swe_factory.mutation.variants import is_tight, variants_of

# TypeError: for a lambda right behind `if(`. TODO(libcst>1.9): drop it when that is parsed.
_PARSE_ERRORS = (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, LookupError, TypeError)
_STATEMENTS = (cst.BaseStatement, cst.BaseSmallStatement, cst.Module)


def find_sites(source: bytes, file: str) -> tuple[Site, ...]:
    """Return every site of a module, in the order of the source; equal bytes give equal sites.

    `file` is what the sites' specs will say. Raises `UsageError` for what is not Python.
    """
    with parsing:
        sites = _parse(source).found
    return tuple(replace(found.site, file=file) for found in sites)


def mutate(source: bytes, spec: MutationSpec) -> bytes:
    """Return the module with a mutation in it; the spec's `file` is not looked at.

    Raises `UsageError` for an unknown operator, a place the module does not have, and a variant out
    of range.
    """
    with parsing:
        parsed = _parse(source)
        found = _lookup(parsed, spec)
        replacer = _Replacer({found.node: found.variants[spec.variant]}, set(found.ancestors))
        texts = list(parsed.texts)
        new = parsed.module.body[found.top].visit(replacer)
        texts[len(parsed.module.header) + found.top] = _text(parsed.module, new)
        return parsed.source(texts)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    site: Site
    """Of no file."""
    node: cst.CSTNode
    top: int
    """Index of the statement of the module that holds it."""
    ancestors: tuple[cst.CSTNode, ...]
    variants: tuple[Replacement, ...]


@dataclass(frozen=True, slots=True)
class _Parsed:
    module: cst.Module
    texts: tuple[str, ...]
    """Header lines, statements, footer lines: only what is changed is written anew."""
    found: tuple[_Found, ...]
    by_location: Mapping[tuple[str, str], _Found]

    def source(self, texts: Sequence[str]) -> bytes:
        """Return a module made of these texts."""
        whole = "".join(texts)
        if not self.module.has_trailing_newline:
            whole = whole.removesuffix(self.module.default_newline)
        return whole.encode(self.module.encoding)


@lru_cache(maxsize=64)
def _parse(source: bytes) -> _Parsed:
    """Parse and find all sites; kept, as one module is mutated hundreds of times."""
    try:
        module = cst.parse_module(source)
    except _PARSE_ERRORS as e:
        raise UsageError(f"not a Python module that can be mutated: {e}") from e
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    ranges = wrapper.resolve(PositionProvider)
    lines = re.split(r"\r\n|\r|\n", module.code)
    found = []
    outside = NodePlace(ancestors=(module,), qualname="", attributes=())
    # Each node that may be changed, with the number of the module's statement that holds it.
    nodes = ((i, *below) for i, top in enumerate(module.body) for below in _below(top, outside))
    for top, node, place in nodes:
        for name, operator in OPERATORS.get(type(node), ()):
            variants = variants_of(operator, node, place)
            if is_tight(lines, ranges[node]):
                variants = tuple(v for v in variants if _fits(v, node, place))
            if variants:
                start, end = ranges[node].start, ranges[node].end
                site = Site(
                    file="",
                    operator=name,
                    line=start.line,
                    column=start.column,
                    end_line=end.line,
                    end_column=end.column,
                    node_kind=type(node).__name__,
                    qualname=place.qualname,
                    num_variants=len(variants),
                )
                found.append(_Found(site, node, top, place.ancestors, variants))
    found.sort(
        key=lambda f: (
            f.site.line,
            f.site.column,
            f.site.end_line,
            f.site.end_column,
            f.site.operator,
        )
    )
    by_location = {(f.site.operator, f.site.location): f for f in found}
    assert len(by_location) == len(found), "two sites of one operator in one place"
    texts = tuple(_text(module, part) for part in (*module.header, *module.body, *module.footer))
    parsed = _Parsed(module, texts, tuple(found), by_location)
    if parsed.source(texts) != source:
        raise UsageError("not a Python module that can be mutated: libcst writes it differently")
    return parsed


def _fits(replacement: Replacement, node: cst.CSTNode, place: NodePlace) -> bool:
    """Return whether a replacement can stand where the node is, as in `return-x`."""
    if not isinstance(replacement, cst.CSTNode):
        return True
    # What is around the statement is parted from it by a line or a semicolon.
    around = next(a for a in reversed(place.ancestors) if isinstance(a, _STATEMENTS))
    try:
        around.visit(_Replacer({node: replacement}, set(place.ancestors)))
    except cst.CSTValidationError:
        return False
    return True


def _text(
    module: cst.Module,
    new: cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement],
) -> str:
    if isinstance(new, cst.RemovalSentinel):
        return ""
    parts = list(new) if isinstance(new, cst.FlattenSentinel) else [new]
    return "".join(module.code_for_node(part) for part in parts)


def _lookup(parsed: _Parsed, spec: MutationSpec) -> _Found:
    names = {name for operators in OPERATORS.values() for name, _ in operators}
    if spec.operator not in names:
        raise UsageError(unknown_name("mutation operator", spec.operator, names))
    found = parsed.by_location.get((spec.operator, spec.location))
    if found is None:
        raise UsageError(
            f"operator {spec.operator!r} changes nothing at {spec.location!r} of {spec.file!r}. "
            "Hint: a spec belongs to one version of a file"
        )
    if not 0 <= spec.variant < len(found.variants):
        raise UsageError(
            f"{spec.operator} at {spec.location!r} has variants 0 to {len(found.variants) - 1}, "
            f"got {spec.variant!r}"
        )
    return found


class _Replacer(cst.CSTTransformer):
    def __init__(
        self, replacements: Mapping[cst.CSTNode, Replacement], ancestors: set[cst.CSTNode]
    ) -> None:
        super().__init__()
        self.replacements = replacements
        self.ancestors = ancestors

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Return whether anything below a node is replaced; the rest is left unread."""
        return node in self.ancestors

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Replacement:  # type: ignore[override]  # wider than libcst declares, as it accepts
        return self.replacements.get(original_node, updated_node)


def _below(node: cst.CSTNode, place: NodePlace) -> Iterator[tuple[cst.CSTNode, NodePlace]]:
    if is_left_alone(node):
        return
    yield node, place
    qualname, attributes = place.qualname, place.attributes
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        qualname = f"{qualname}.{node.name.value}" if qualname else node.name.value
    if isinstance(node, cst.ClassDef):
        attributes = _attributes(node)
    inner = NodePlace(ancestors=(*place.ancestors, node), qualname=qualname, attributes=attributes)
    # Texts of exceptions are messages; which exception it is stays open to change.
    if not isinstance(node, cst.Raise):
        for child in node.children:
            yield from _below(child, inner)


def _attributes(node: cst.ClassDef) -> tuple[str, ...]:
    """Return the attributes that a class's `__init__` sets on self, sorted."""
    names: set[str] = set()
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__":
            bare = statement.with_changes(
                leading_lines=(), decorators=(), lines_after_decorators=()
            )
            for child in ast.walk(parse_source(code(bare))):
                if (
                    isinstance(child, ast.Attribute)
                    and isinstance(child.ctx, ast.Store)
                    and isinstance(child.value, ast.Name)
                    and child.value.id == "self"
                ):
                    names.add(child.attr)
    return tuple(sorted(names))
