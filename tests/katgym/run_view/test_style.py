"""Colours of the pages tell text and marks from what is behind them, on light and dark paper."""

from __future__ import annotations

import re

import pytest

from katgym.run_view.page_frame import STYLES, asset

SHEET = "".join(map(asset, STYLES))
TEXT = [
    ("ink", "paper"), ("ink", "card"), ("soft", "paper"), ("soft", "card"), ("accent", "paper"),
    ("accent", "card"), ("alert", "paper"), ("alert", "card"), ("warn-ink", "warn-paper"),
    ("alert", "warn-paper"), ("paper", "ink"),
]  # fmt: skip
"""Colour of text, and what it stands on: AA asks for 4.5 to 1."""
MARKS = [
    *((f"c{number}", "paper") for number in range(8)),
    ("good", "paper"), ("bad", "paper"), ("accent", "paper"),
]  # fmt: skip
"""Curves, dots and swatches: 3 to 1."""


def colors(is_dark: bool) -> dict[str, str]:
    """Return the names and values of a theme's colours."""
    light, dark = re.findall(r":root \{(.*?)\}", asset("frame.css"), re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if is_dark else found


def luminance(color: str) -> float:
    """Return the relative luminance, WCAG 2.2."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_text_can_be_read_and_marks_be_seen():
    for is_dark in (False, True):
        found = colors(is_dark)
        told = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in TEXT}
        assert {pair: ratio for pair, ratio in told.items() if ratio < 4.5} == {}, is_dark
        marks = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in MARKS}
        assert {pair: ratio for pair, ratio in marks.items() if ratio < 3} == {}, is_dark


def test_tokens_can_be_read_on_their_strongest_tint():
    sheets = re.findall(r":root \{(.*?)\}", asset("frame.css"), re.DOTALL)
    for is_dark, sheet in zip((False, True), sheets, strict=True):
        (weight,) = re.findall(r"--tint: ([\d.]+);", sheet)
        share = 0.6 * float(weight)  # `background` in assets/tokens.js
        paper = colors(is_dark)["paper"]
        behind = [int(paper[place : place + 2], 16) for place in (1, 3, 5)]
        for name in ("heat", "violet", "pos", "neg"):
            (tint,) = re.findall(rf"--{name}: (\d+) (\d+) (\d+);", sheet)
            mixed = [share * int(t) + (1 - share) * b for t, b in zip(tint, behind, strict=True)]
            shown = "#" + "".join(f"{round(part):02x}" for part in mixed)
            assert contrast(colors(is_dark)["ink"], shown) >= 4.5, (name, is_dark)


def test_no_text_has_a_colour_of_another_kind():
    """Every `color:` names one of the colours that the test above looks at."""
    allowed = {pair[0] for pair in TEXT} | {"inherit"}
    used = re.findall(r"[{; ]color: (?:var\(--([\w-]+)\)|(\w+))", SHEET)
    assert {one or other for one, other in used} - allowed == {"unknown"}
    (line,) = [one for one in SHEET.splitlines() if re.search(r"[{; ]color: var\(--unknown", one)]
    assert 'content: "/"' in line


def test_curves_are_told_apart_without_their_colour():
    dashes = re.findall(r"\.c(\d)\.line \{ stroke-dasharray: ([\d ]+);", SHEET)
    assert [number for number, _ in dashes] == list("1234567")
    assert len({dash for _, dash in dashes}) == 7
