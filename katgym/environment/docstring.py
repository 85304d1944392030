"""Docstrings in the styles of Google, NumPy and Sphinx (reST): description and argument texts.

Not here: what becomes of them (`tool.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARGUMENTS = frozenset(
    {
        "Args", "Arguments", "Parameters", "Params", "Other Parameters", "Keyword Args",
        "Keyword Arguments",
    }
)  # fmt: skip
_OTHERS = frozenset(
    {
        "Return", "Returns", "Yield", "Yields", "Receives", "Raises", "Warns", "See Also", "Note",
        "Notes", "References", "Example", "Examples", "Attributes", "Methods",
    }
)  # fmt: skip
_NAMES = r"[*`\\]*\w+[*`]*"
_GOOGLE_ITEM = re.compile(rf"(?:[-*+]\s+)?({_NAMES})\s*(?:\(.*?\)|\[.*?\])?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(rf"({_NAMES}(?:\s*,\s*{_NAMES})*)\s*(?::.*)?")
_UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,})\s*")
_FIELD = re.compile(r"\s*[:@](\w+)(?:\s+([^:]*?))?\s*:\s*(.*)")
_FIELD_ARGUMENTS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_FIELDS = _FIELD_ARGUMENTS | {
    "type", "return", "returns", "rtype", "raise", "raises", "except", "exception", "yield",
    "yields", "ytype", "var", "ivar", "cvar", "vartype", "meta",
}  # fmt: skip


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, on one line, and one text per argument.

    doc: as of `inspect.getdoc`. A section is `Args:` with indented lines, `Parameters` with a line
    of dashes below, or `:param name: text`; the styles may be mixed.
    """
    lines = doc.split("\n")
    head: list[str] = []
    texts: dict[str, list[str]] = {}
    style = "head"
    names: list[str] = []  # of the arguments that the next lines are about
    margin = -1  # of the items of a Google section; -1 before its first
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        title = text.removesuffix(":")
        is_title = not indent and title in _ARGUMENTS | _OTHERS
        is_argument = title in _ARGUMENTS
        field = _FIELD.fullmatch(line)
        if is_title and _UNDERLINE.fullmatch(below):
            style, names = "numpy" if is_argument else "other", []
        elif is_title and text.endswith(":"):
            style, names, margin = "google" if is_argument else "other", [], -1
        elif field is not None and field[1] in _FIELDS:
            style, names = "field", []
            if field[1] in _FIELD_ARGUMENTS and field[2]:
                names = [_bare(field[2].split()[-1])]  # a type may stand before it
            _add(texts, names, field[3])
        elif style == "head":
            head.append(line)
        elif not text:
            names = [] if style == "field" else names
        elif style == "google":
            margin = indent if margin < 0 else margin
            item = _GOOGLE_ITEM.fullmatch(text)
            if indent < margin:
                style, names = "other", []
            elif indent == margin and item is not None:
                names = [_bare(item[1])]
                _add(texts, names, item[2])
            else:
                _add(texts, names, text)
        elif style == "numpy" and not indent:
            item = _NUMPY_ITEM.fullmatch(text)
            names = [_bare(name) for name in item[1].split(",")] if item else []
        else:
            _add(texts, names, text)
    joined = {name: _one_line(parts) for name, parts in texts.items()}
    return _one_line(head), {name: text for name, text in joined.items() if text}


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def _bare(name: str) -> str:
    return name.strip().strip("*`\\")


def _add(texts: dict[str, list[str]], names: list[str], text: str) -> None:
    for name in names:
        texts.setdefault(name, []).append(text)
