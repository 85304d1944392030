"""Limits are positive or None."""

from __future__ import annotations

import math
from typing import Any

import pytest

from katgym.errors import UsageError
from katgym.play.limits import Limits

FIELDS = ("max_turns", "max_tokens", "max_context_tokens", "timeout_s")


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_limits_refuse_what_is_not_positive(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Limits(**{name: value})
    assert str(caught.value) == f"{name} is > 0 or None, got {value!r}"


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_an_env_gets_some_time_to_close(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Limits(close_timeout_s=value)
    assert str(caught.value) == f"close_timeout_s is > 0, got {value!r}"


def test_limits_default_to_none() -> None:
    assert [getattr(Limits(), name) for name in FIELDS] == [None] * 4
    assert Limits(max_turns=1, timeout_s=0.5).timeout_s == 0.5
