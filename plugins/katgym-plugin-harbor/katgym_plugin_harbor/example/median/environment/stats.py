"""Figures of lists of numbers."""


def median(numbers: list[float]) -> float:
    """Return the number in the middle."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
