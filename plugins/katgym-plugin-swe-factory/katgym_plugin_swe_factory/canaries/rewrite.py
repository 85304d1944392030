"""Edits that give a literal of a test module another value; what stays equal keeps its bytes.

Quotes, prefixes, line breaks and layout stay, so that the text of a test tells nothing. Not here:
which value (`near_values.py`), which literal (`near.py`).
"""

from __future__ import annotations

import ast
from typing import Any

from katgym_envs.swe.canaries.canary import Edit
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.parse_source import parse_source
from katgym_plugin_swe_factory.canaries import containers
from katgym_plugin_swe_factory.canaries.likeness import middles
from katgym_plugin_swe_factory.canaries.string_units import Unit, text_units

_SEQUENCES = (ast.List, ast.Tuple)


def rewrite(text: ModuleText, node: ast.expr, new: Any) -> tuple[Edit, ...] | None:
    """Return the edits after which a literal has the value `new`; None if no few edits do that.

    They hold as many line ends as before, and are read back: the value is `new` indeed.
    """
    is_literal, old = literal_value(node)
    if not is_literal:
        return None
    edits = _edits(text, node, old, new)
    if not edits:
        return None
    start, end = text.span(node)
    changed = bytearray(text.source[start:end])
    for edit in sorted(edits, key=lambda e: -e.start):
        changed[edit.start - start : edit.end - start] = str(edit.parts[0]).encode()
    try:
        read = parse_source(f"({changed.decode()})", mode="eval").body
    except SyntaxError:
        return None
    is_literal, value = literal_value(read)
    has_same_lines = changed.count(b"\n") == text.text(node).count(b"\n")
    return edits if is_literal and repr(value) == repr(new) and has_same_lines else None


def literal_value(node: ast.expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None


def _edits(text: ModuleText, node: ast.expr, old: Any, new: Any) -> tuple[Edit, ...] | None:
    if isinstance(old, str) and isinstance(new, str):
        return _text_edit(text, node, new)
    if type(old) is not type(new):
        return None
    if isinstance(old, (list, tuple)) and isinstance(node, _SEQUENCES):
        if len(old) == len(new):
            return _element_edits(text, list(zip(node.elts, old, new, strict=True)))
        return _length_edit(text, node, list(old), list(new))
    if isinstance(old, dict) and isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        if len(keys) != len(old):  # a key twice, or `**`
            return None
        if len(old) != len(new):
            return _length_edit(text, node, list(old.items()), list(new.items()))
        rows = list(zip(keys, old, new, strict=True))
        rows += zip(node.values, old.values(), new.values(), strict=True)
        return _element_edits(text, rows)
    start, end = text.span(node)
    if isinstance(old, (bool, int, float)) and text.text(node) == repr(old).encode():
        return (Edit(start, end, (repr(new),)),)
    return None


def _element_edits(
    text: ModuleText, rows: list[tuple[ast.expr, Any, Any]]
) -> tuple[Edit, ...] | None:
    """Return the edits of all elements that differ; each row is (node, old, new)."""
    edits: list[Edit] = []
    for node, old, new in rows:
        if repr(old) != repr(new):
            found = _edits(text, node, old, new)
            if not found:
                return None
            edits += found
    return tuple(edits)


def _length_edit(
    text: ModuleText, node: containers.Container, old: list[Any], new: list[Any]
) -> tuple[Edit, ...] | None:
    """Return the edit that replaces the elements between those that both lists share."""
    spans = containers.element_spans(text, node)
    start, end = middles([repr(i) for i in old], [repr(i) for i in new])
    fresh = new[start : len(new) - end]
    shown = ", ".join(_source(item, node, text) for item in fresh)
    if len(spans) != len(old) or len(shown) > 400:
        return None
    gone = spans[start : len(spans) - end]
    if gone and fresh:
        place = Edit(gone[0][0], gone[-1][1], (shown,))
    elif gone and end:
        place = Edit(gone[0][0], spans[len(spans) - end][0], ("",))
    elif gone and start:
        place = Edit(spans[start - 1][1], gone[-1][1], ("",))
    elif start:
        place = Edit(spans[start - 1][1], spans[start - 1][1], (f", {shown}",))
    elif end:
        place = Edit(spans[0][0], spans[0][0], (f"{shown}, ",))
    else:
        first, last = text.span(node)
        place = Edit(first + 1, last - 1, (shown,))
    return None if b"\n" in text.source[place.start : place.end] else (place,)


def _source(item: Any, node: containers.Container, text: ModuleText) -> str:
    """Return an element as source, in the quotes of its neighbours."""
    if isinstance(node, ast.Dict):
        return f"{_quote(item[0], node, text)}: {_quote(item[1], node, text)}"
    return _quote(item, node, text)


def _quote(item: Any, node: containers.Container, text: ModuleText) -> str:
    shown = repr(item)
    is_double = b'"' in text.text(node)
    return shown.replace("'", '"') if is_double and '"' not in shown else shown


def _text_edit(text: ModuleText, node: ast.expr, new: str) -> tuple[Edit, ...] | None:
    """Return the edit of the letters that differ, if one string token holds them all."""
    units = text_units(text, *text.span(node))
    if units is None:
        return None
    start, end = middles([u.char for u in units], new)
    gone, fresh = units[start : len(units) - end], new[start : len(new) - end]
    around = gone or units[max(0, start - 1) : start] or units[:1]
    if not around or len({u.token for u in around}) > 1:
        return None
    first = around[0].start if gone or not start else around[0].end
    last = gone[-1].end if gone else first
    letters = [_letter(char, around[0], units, text.source) for char in fresh]
    if b"\n" in text.source[first:last] or None in letters:
        return None
    return (Edit(first, last, ("".join(filter(None, letters)),)),)


def _letter(char: str, beside: Unit, units: list[Unit], source: bytes) -> str | None:
    """Return a letter as this token writes it; None if it cannot be written there."""
    known = next((u for u in units if u.char == char and u.token == beside.token), None)
    if known is not None:
        written = source[known.start : known.end].decode()
        return None if "\n" in written else written
    if char == "\n" and not beside.is_raw:
        return "\\n"
    return char if char.isprintable() and char not in "\\'\"" else None
