"""The frame of all pages: what scripts and data it loads, escaped text; numbers and rewards.

A site has its style and its script once, in `assets/`. Data are scripts, too, that call `give` with
JSON: a browser loads them from a disk as well as from a server. A page's policy lets a browser run
scripts of its own site alone. Not here: what is on a page (`screens/`), the script (`assets/`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from katgym.evaluation.statistics.number_text import NONE, number_text

STYLES = ("frame.css", "style.css")
SCRIPTS = (
    "page.js", "keys.js", "table.js", "charts.js", "tree.js", "tokens.js", "rollout.js",
    "group.js", "lists.js", "compare.js", "start.js",
)  # fmt: skip
"""What `assets/katgym.css` and `assets/katgym.js` of a site are made of, in this order."""
_POLICY = (
    "default-src 'none'; style-src 'self' file: 'unsafe-inline'; script-src 'self' file:;"
    " connect-src 'self'"
)

_SINGLE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(*, title: str, body: str, screen: str, root: str = "", run: str = "") -> str:
    """Return a whole page.

    body: HTML, escaped. screen: which of the script's screens draws the rest. root: the address of
    the site's first folder, relative to the page. run: the same of the run that the page is about.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="stylesheet" href="{root}assets/katgym.css">
</head>
<body data-screen="{screen}" data-root="{root}" data-run="{run}">
{body}
<noscript><p class="notes">This page is drawn by its script.</p></noscript>
<div id="tip" role="status" hidden></div>
<script src="{root}assets/katgym.js"></script>
</body>
</html>
"""


def single_page(*, title: str, body: str, style: str) -> str:
    """Return a page that is one file, with its style in it and no script."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_SINGLE_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{asset("frame.css")}{asset(style)}</style>
</head>
<body>
{body}
</body>
</html>
"""


def site_assets() -> dict[str, str]:
    """Return path -> text of what all pages of a site load."""
    return {
        "assets/katgym.css": "".join(map(asset, STYLES)),
        "assets/katgym.js": "\n".join(map(asset, SCRIPTS)),
    }


def data_script(data: Any) -> str:
    """Return JSON as a script that gives it to the page."""
    return f"give({safe_json(data)});\n"


def safe_json(data: Any) -> str:
    """Return JSON that nothing in it can end a script element of."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def asset(name: str) -> str:
    """Return a file of `assets/`."""
    return resources.files("katgym.run_view").joinpath("assets", name).read_text(encoding="utf-8")


def facts(pairs: Sequence[tuple[str, str]], css: str = "facts") -> str:
    """Return names and values as a list of terms."""
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in pairs)
    return f'<dl class="{css}">{items}</dl>' if items else ""


def notes(sentences: Sequence[str]) -> str:
    """Return sentences about what is missing."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="notes" role="note">{items}</ul>' if items else ""


def shade(value: float | None, low: float, high: float) -> str:
    """Return the style that gives a reward its colour between `low` and `high`; "" without one."""
    if value is None:
        return ""
    share = (value - low) / (high - low) if high > low else 1.0
    return f"--v:{100 * min(1.0, max(0.0, share)):.0f}%"


def short(value: float | None, digits: int = 2) -> str:
    """Return a number as cells have it, without a fraction that is 0."""
    text = number_text(value, digits)
    if text == NONE or "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def plural(count: int, noun: str) -> str:
    """Return `1 group`, `2 groups`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
