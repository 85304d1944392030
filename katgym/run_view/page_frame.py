"""The frame of all pages: data and scripts in it, escaped; numbers and rewards.

A page is one file that loads nothing, and its policy lets a browser run our script alone. Not here:
what is on a page (`index_page.py`, `group_page.py`, `leaderboard_page.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from katgym.evaluation.statistics.number_text import NONE, number_text


def page(
    *,
    title: str,
    body: str,
    scripts: Sequence[str] = (),
    style: str = "style.css",
    data: Any = None,
) -> str:
    """Return a whole page.

    body: HTML, escaped. scripts: names of files in `assets/`, run in this order; without any the
        page may run none. style: the file there that follows the frame's own style. data: JSON that
        the scripts find in the element `data`.
    """
    policy, end = "default-src 'none'; style-src 'unsafe-inline'", ""
    if scripts:
        script = "\n".join(asset(name) for name in ("page.js", *scripts))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        end = f'<div id="tip" role="tooltip" hidden></div>\n<script>{script}</script>\n'
        if data is not None:
            end = f'<script type="application/json" id="data">{safe_json(data)}</script>\n{end}'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{asset("frame.css")}{asset(style)}</style>
</head>
<body>
{body}
{end}</body>
</html>
"""


def safe_json(data: Any) -> str:
    """Return JSON that nothing in it can end the script element of."""
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
