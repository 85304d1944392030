"""Numbers as evaluation writes them: one form in terminals, Markdown and HTML."""

from __future__ import annotations

from katgym.evaluation.statistics.intervals import Interval

NONE = "–"
"""Shown where a number does not exist."""


def number_text(value: float | None, digits: int = 3) -> str:
    """Return the number with a true minus sign, so that columns of digits align."""
    if value is None:
        return NONE
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def interval_text(interval: Interval | None, digits: int = 3) -> str:
    """Return `[0.410, 0.630]`."""
    if interval is None:
        return NONE
    return f"[{number_text(interval.low, digits)}, {number_text(interval.high, digits)}]"


def estimate_text(value: float | None, interval: Interval | None, digits: int = 3) -> str:
    """Return `0.520 [0.410, 0.630]`, without the brackets when there is no interval."""
    text = number_text(value, digits)
    return text if interval is None else f"{text} {interval_text(interval, digits)}"


def count_text(count: int) -> str:
    """Return `12,345`."""
    return f"{count:,}"


def p_value_text(p_value: float | None) -> str:
    """Return three digits, `<0.001` below them."""
    if p_value is None:
        return NONE
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
