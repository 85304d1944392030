"""Values of files that others wrote: what is not of the wanted type is as good as missing."""

from __future__ import annotations

import math


def finite(value: object) -> float | None:
    """Return a finite number as it is; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """Return an int as it is; None for anything else, true and false included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
