"""Files of metrics, a line of JSON a step, and their values: what does not fit is left out.

Not here: which metrics become which chart (`panels.py`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]


def finite(value: object) -> float | None:
    """Return a finite number as it is; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """Return an int as it is; None for anything else, true and false included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_steps(path: Path) -> tuple[list[Line], int]:
    """Return the lines that have a step, by step, and how many others there are.

    A last line without its end is still written and counts as neither; a step that is there twice
    counts as written last.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    latest: dict[tuple[float, Any], Line] = {}
    num_torn = 0
    for raw in filter(bytes.strip, data.split(b"\n")[:-1]):
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        if isinstance(line, dict) and finite(line.get("step")) is not None:
            latest[line["step"], line.get("env")] = line
        else:
            num_torn += 1
    if num_torn:
        logger.warning("%d lines of %s cannot be read and are left out", num_torn, path)
    return sorted(latest.values(), key=lambda line: float(line["step"])), num_torn
