"""`policy(uri)`: from `scheme[:rest]` to a policy.

Not here: the built-in schemes (`plugins/built_ins.py`) and their policies (one module each).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.plugins.contributions import load_entry_point
from katgym.policies.base import Policy

_URI = re.compile(r"(?P<scheme>[A-Za-z0-9_.+-]+)(?::(?P<rest>.*)|(?P<options>\?.*))?", re.DOTALL)


def policy(uri: str, *, schemes: Mapping[str, str] | None = None) -> Policy:
    """Return the policy a URI names; the caller closes it with `await policy.aclose()`.

    schemes: scheme -> `module:attribute`; None takes the built-in ones and those of plugins.
    Raises `UnknownNameError` for an unknown scheme, `UsageError` for a URI of the wrong form, and
    `MissingDependencyError` when the policy needs a package that is not installed.

    Example:
        >>> katgym.policy("oracle").name
        'oracle'
    """
    if schemes is None:
        from katgym import plugins  # here, as plugins may load policies

        targets = {name: entry.entry_point for name, entry in plugins.policy_schemes().items()}
    else:
        targets = dict(schemes)
    match = _URI.fullmatch(uri) if isinstance(uri, str) else None
    if match is None:
        raise UsageError(
            f"a policy is written scheme or scheme:rest, got {uri!r}."
            f" Schemes: {', '.join(sorted(targets))}"
        )
    target = targets.get(match["scheme"])
    if target is None:
        text = unknown_name("policy", match["scheme"], targets)
        raise UnknownNameError(f"{text} Schemes: {', '.join(sorted(targets))}.")
    factory = load_entry_point(target)
    return cast(Policy, factory(match["rest"] or match["options"] or ""))
