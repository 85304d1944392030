#!/bin/bash
set -e
cat > /app/stats.py <<'END'
"""Figures of lists of numbers."""


def median(numbers: list[float]) -> float:
    """Return the number in the middle, or the mean of the two there."""
    if not numbers:
        raise ValueError("an empty list has no median")
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
END
