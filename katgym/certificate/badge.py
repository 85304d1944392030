"""Badge of certificates: a small SVG that says how many checks pass.

Not here: the checks; anything that fetches a picture from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from katgym.certificate.findings import CheckReport, CheckStatus

LABEL = "katgym check"
GREEN, RED = "#2e7d32", "#b3261e"
CHARACTER_PX = 6.6
"""Width of a character at 11 px; the text is told to fill what this gives."""
PADDING_PX = 6

TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
<title>{title}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{pad}" y="14" textLength="{left_text}">{label}</text>
<text x="{start}" y="14" textLength="{right_text}">{value}</text></g>
</svg>
"""


def describe(reports: Sequence[CheckReport]) -> str:
    """Return the badge's words: checks passed of those that apply, and what fails.

    Example:
        >>> describe([CheckReport(env_id="a/B-v0", checks=())])
        '0/0 passed'
    """
    applied = [c for r in reports for c in r.checks if c.status is not CheckStatus.SKIPPED]
    passed = sum(check.status is CheckStatus.PASSED for check in applied)
    failed = sorted({check.name for check in applied if check.status is CheckStatus.FAILED})
    shown = ", ".join(failed[:2]) + (f" and {len(failed) - 2} more" if len(failed) > 2 else "")
    return f"{passed}/{len(applied)} passed" + (f", not {shown}" if failed else "")


def draw_badge(reports: Sequence[CheckReport]) -> str:
    """Return the badge of one or several certificates as SVG."""
    value = describe(reports)
    left_text, right_text = round(len(LABEL) * CHARACTER_PX), round(len(value) * CHARACTER_PX)
    left, right = left_text + 2 * PADDING_PX, right_text + 2 * PADDING_PX
    return TEMPLATE.format(
        width=left + right,
        left=left,
        right=right,
        colour=GREEN if all(report.ok for report in reports) else RED,
        pad=PADDING_PX,
        start=left + PADDING_PX,
        left_text=left_text,
        right_text=right_text,
        label=escape(LABEL),
        value=escape(value),
        title=escape(f"{LABEL}: {value}"),
    )
