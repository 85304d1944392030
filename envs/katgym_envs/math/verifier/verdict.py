"""The verdict of a verification, and the errors of this package.

Not here: how a verdict is reached (`verifier.py` for the stages, `comparison.py` for equality).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Method(enum.StrEnum):
    """Which stage decided."""

    EXACT = "exact"
    """Equal text, or rational arithmetic in the caller's process."""
    SYMBOLIC = "symbolic"
    """Numeric evaluation and computer algebra in a worker process."""
    REJECTED = "rejected"
    """Over a cap on size; nothing was evaluated."""
    UNPARSABLE = "unparsable"
    """The answer is not one well-formed mathematical answer (words, leftovers, ambiguity)."""
    TIMEOUT = "timeout"
    """The comparison ran past its limit of time and was ended."""
    MEMORY = "memory"
    """The comparison ran past the memory limit, or crashed its worker twice."""
    UNSUPPORTED_GOLD = "unsupported_gold"
    """The gold answer cannot be read: a fault of the task, which no answer but its text passes."""


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """The result of one comparison.

    Example:
        AnswerVerdict(is_correct=True, method=Method.EXACT, reason="equal rational numbers")
    """

    is_correct: bool
    method: Method
    reason: str


class VerifierUnavailable(RuntimeError):
    """Workers cannot be started or keep dying: no statement about the answer is possible."""


class AnswerError(ValueError):
    """A text is not one well-formed answer; the message says why."""


class CapError(AnswerError):
    """A text is over a cap on length, digits, depth, exponents or factorials."""


class UndefinedError(AnswerError):
    """An expression has no value, as in a division by zero."""
