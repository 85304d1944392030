"""Wrong lists, tuples, sets and dicts: an element missing, twice, or at another's place.

Not here: changes of one element (`literals.py`).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from katgym_envs.swe.canaries.canary import Edit, pick
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_plugin_swe_factory.canaries.literals import Change

Container = ast.List | ast.Tuple | ast.Set | ast.Dict
_FILLED = {ast.List: "[None]", ast.Tuple: "(None,)", ast.Dict: "{'a': 1}"}


def change_container(text: ModuleText, node: Container) -> Iterator[Change]:
    """Yield changes of a container that is one value: its length may change."""
    start, end = text.span(node)
    spans = element_spans(text, node)
    if not spans:
        if text.source[start:end] in (b"[]", b"()", b"{}"):
            yield "container_fill", (Edit(start, end, (_FILLED[type(node)],)),)
        return
    yield from swap_elements(text, spans, node)
    first_dropped = 0 if len(spans) > 2 or not isinstance(node, ast.Tuple) else len(spans)
    if first_dropped < len(spans):
        yield "container_drop", (_drop(text, node, spans, pick(start, "drop") % len(spans)),)
    if isinstance(node, (ast.List, ast.Tuple)):
        s, e = spans[pick(start, "double") % len(spans)]
        if b"\n" not in text.source[s:e]:
            yield "container_double", (Edit(e, e, (", ", (s, e))),)


def swap_elements(
    text: ModuleText, spans: Sequence[tuple[int, int]], node: Container
) -> Iterator[Change]:
    """Yield one swap of two neighbours that differ; of a dict, two of its values."""
    if isinstance(node, ast.Set):
        return
    if isinstance(node, ast.Dict):
        spans = [text.span(value) for value in node.values]
    pairs = [
        (a, b)
        for a, b in itertools.pairwise(spans)
        if text.source[slice(*a)] != text.source[slice(*b)]
        and b"\n" not in text.source[slice(*a)] + text.source[slice(*b)]
    ]
    if pairs:
        a, b = pairs[pick(spans[0], "swap") % len(pairs)]
        yield "container_swap", (Edit(*a, (b,)), Edit(*b, (a,)))


def swap_rows(text: ModuleText, rows: Sequence[ast.expr]) -> Iterator[tuple[int, Change]]:
    """Yield (line, swap) of the same column of neighbouring rows, both being plain literals."""
    for one, other in itertools.pairwise(rows):
        if not isinstance(one, (ast.Tuple, ast.List)) or not isinstance(
            other, (ast.Tuple, ast.List)
        ):
            continue
        if not one.elts or len(one.elts) != len(other.elts):
            continue
        column = len(one.elts) - 1
        a, b = one.elts[column], other.elts[column]
        if not (isinstance(a, ast.Constant) and isinstance(b, ast.Constant)):
            continue
        if type(a.value) is type(b.value) and a.value != b.value:
            span_a, span_b = text.span(a), text.span(b)
            if b"\n" not in text.source[slice(*span_a)] + text.source[slice(*span_b)]:
                yield a.lineno, ("row_swap", (Edit(*span_a, (span_b,)), Edit(*span_b, (span_a,))))


def element_spans(text: ModuleText, node: Container) -> list[tuple[int, int]]:
    """Return the spans of a container's elements; none if one is unpacked or in parentheses."""
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            return []
        spans = [
            (text.span(key)[0], text.span(value)[1])
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        ]
    else:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return []
        spans = [text.span(element) for element in node.elts]
    gaps = [text.source[a[1] : b[0]] for a, b in itertools.pairwise(spans)]
    if spans:
        start, end = text.span(node)
        gaps += [text.source[start + 1 : spans[0][0]], text.source[spans[-1][1] : end - 1]]
    if any(bracket in gap for gap in gaps for bracket in (b"(", b")", b"#")):
        return []
    return spans


def _drop(text: ModuleText, node: Container, spans: Sequence[tuple[int, int]], index: int) -> Edit:
    """Return the edit that takes out one element and its comma; line ends stay."""
    if len(spans) == 1:
        start, end = text.span(node)
        start, end = start + 1, end - 1
    elif index + 1 < len(spans):
        start, end = spans[index][0], spans[index + 1][0]
    else:
        start, end = spans[index - 1][1], spans[index][1]
    new = "\n" * text.source.count(b"\n", start, end)
    if len(spans) == 1 and isinstance(node, ast.Set):
        new = "None" + new  # `{}` would be a dict
    return Edit(start, end, (new,))
