"""Exceptions of katgym and the wording they share.

Not here: failure kinds of a rollout (`failure.py`); an exception becomes one of those at the agent
loop's boundary.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KatgymError(Exception):
    """Base of every error katgym raises on purpose."""


class UsageError(KatgymError, ValueError):
    """The caller passed something that cannot work; the text says what is allowed.

    The command line turns it into exit code 2.
    """


class UnknownNameError(UsageError, KeyError):
    """A name was looked up that does not exist; the text names the nearest ones."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:  # KeyError would print the repr
        return self.message

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str]]:
        return (type(self), (self.message,))


class DuplicateIdError(UsageError):
    """An id was registered twice."""


class MissingDependencyError(KatgymError, ImportError):
    """An optional package is not installed; the text holds the install command."""


class ToolError(KatgymError):
    """Raise it inside a tool: its text becomes the tool's result and the episode goes on."""


class InfrastructureError(KatgymError):
    """Something outside the policy broke (sandbox, server, worker).

    Cancels the rollout, whose reward becomes invalid: it never counts as a score of 0.
    `kind` is a `FailureKind` value.
    """

    def __init__(self, message: str, *, kind: str = "infrastructure_error") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_infrastructure_error, (type(self), self.message, self.kind))


def _rebuild_infrastructure_error(
    cls: type[InfrastructureError], message: str, kind: str
) -> InfrastructureError:
    error = cls.__new__(cls)
    InfrastructureError.__init__(error, message, kind=kind)
    return error


class DiskFullError(InfrastructureError):
    """A disk has no room for the file or folder `path`."""

    def __init__(self, path: str, hint: str) -> None:
        super().__init__(f"cannot write {path!r}: the disk is full; {hint}")
        self.path = path
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.hint))


class PolicyError(InfrastructureError):
    """The policy's server is down, slow, or answered something that cannot be used."""

    def __init__(self, message: str, *, kind: str = "policy_unavailable") -> None:
        super().__init__(message, kind=kind)


class ContextLengthError(KatgymError):
    """The conversation no longer fits the policy's context; the episode is truncated."""


class EpisodeStateError(KatgymError, RuntimeError):
    """`step` before `reset`, or after the episode has ended."""


def unknown_name(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> str:
    """Return the text for an unknown name: what, the value, the nearest names, a hint.

    Example:
        >>> unknown_name("env", "katgym/Mth-v0", ["katgym/Math-v0"])
        "unknown env 'katgym/Mth-v0'. Did you mean 'katgym/Math-v0'?"
    """
    names = sorted({str(k) for k in known})
    text = f"unknown {kind} {name!r}."
    near = _nearest(str(name), names)
    if near:
        text += " Did you mean " + " or ".join(repr(other) for other in near) + "?"
    elif names:
        shown = ", ".join(repr(n) for n in names[:12])
        more = f", and {len(names) - 12} more" if len(names) > 12 else ""
        text += f" Known: {shown}{more}."
    else:
        text += f" There is no {kind} at all."
    return f"{text} {hint}" if hint else text


def check_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> str:
    """Return a name that is known; raise `UnknownNameError`, with the text of `unknown_name`."""
    known = tuple(known)
    if name not in known:
        raise UnknownNameError(unknown_name(kind, name, known, hint=hint))
    return name


def _nearest(name: str, names: list[str]) -> list[str]:
    """Return the names most like `name`, ignoring case: the best, and those about as good."""
    ratios = [
        (difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio(), other)
        for other in names
    ]
    best = max((ratio for ratio, _ in ratios), default=0.0)
    near = [(ratio, other) for ratio, other in ratios if ratio >= max(0.6, best - 0.05)]
    return [other for _, other in sorted(near, key=lambda pair: (-pair[0], pair[1]))[:3]]
