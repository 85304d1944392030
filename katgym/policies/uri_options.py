"""Reads the options behind `?` in a policy URI into the policy's config class.

Not here: schemes (`uri.py`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from katgym.errors import UsageError, check_name

C = TypeVar("C")


def parse_options(rest: str, config_class: type[C], *, form: str) -> tuple[str, C]:
    """Split `HEAD?a=1&b=2` and return the head and a config made of the options.

    form: how the URI is written, for the error text. An unknown option names the nearest one.

    Example:
        >>> parse_options("Qwen/Qwen3-0.6B?dtype=bfloat16", HfConfig, form="hf:MODEL")
        ('Qwen/Qwen3-0.6B', HfConfig(dtype='bfloat16', ...))
    """
    head, _, query = rest.partition("?")
    if not head:
        raise UsageError(f"the policy URI ends too early; its form is {form}")
    types: dict[str, Any] = {item.name: item.type for item in fields(config_class)}  # type: ignore[arg-type]  # callers pass dataclasses
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as e:
        raise UsageError(f"cannot read options {query!r}; the form is {form}") from e
    for name, value in pairs:
        check_name("policy option", name, types)
        if not value:
            raise UsageError(f"option {name!r} has no value; the form is {form}")
    try:
        return head, msgspec.convert(dict(pairs), config_class, strict=False)
    except msgspec.ValidationError as e:
        raise UsageError(f"cannot read options {query!r}: {e}") from e
