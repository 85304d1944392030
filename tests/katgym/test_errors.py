"""Error texts, and that errors survive pickling and fit the stdlib's families."""

from __future__ import annotations

import copy
import pickle

import pytest

from katgym.environment.reward import ScoringFailure
from katgym.errors import (
    ContextLengthError,
    DuplicateIdError,
    EpisodeStateError,
    InfrastructureError,
    KatgymError,
    MissingDependencyError,
    PolicyError,
    ToolError,
    UnknownNameError,
    UsageError,
    unknown_name,
)


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (UsageError("a"), ValueError),
        (UnknownNameError("a 'b'"), KeyError),
        (UnknownNameError("a 'b'"), ValueError),
        (DuplicateIdError("a"), ValueError),
        (MissingDependencyError("pip install x"), ImportError),
        (EpisodeStateError("a"), RuntimeError),
        (ToolError("a"), KatgymError),
        (ContextLengthError("a"), KatgymError),
        (InfrastructureError("a", kind="sandbox_error"), KatgymError),
        (PolicyError("a", kind="policy_timeout"), InfrastructureError),
        (ScoringFailure("a", kind="verifier_timeout"), InfrastructureError),
    ],
)
def test_errors_pickle_with_text_kind_and_family(
    error: KatgymError, family: type[Exception]
) -> None:
    assert isinstance(error, family)
    assert isinstance(error, KatgymError)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert getattr(again, "kind", None) == getattr(error, "kind", None)


def test_unknown_name_error_prints_its_text_not_its_repr() -> None:
    assert str(UnknownNameError("unknown env 'x'.")) == "unknown env 'x'."


def test_default_kinds() -> None:
    assert InfrastructureError("x").kind == "infrastructure_error"
    assert PolicyError("x").kind == "policy_unavailable"


def test_unknown_name_suggests_the_nearest() -> None:
    text = unknown_name("env", "katgym/Mth-v0", ["katgym/Math-v0", "other/TicTacToe-v3"])
    assert text == "unknown env 'katgym/Mth-v0'. Did you mean 'katgym/Math-v0'?"


def test_unknown_name_ignores_case_and_gives_hints() -> None:
    text = unknown_name("tool", "CALCULATOR", ["Calculator"], hint="See --help.")
    assert text == "unknown tool 'CALCULATOR'. Did you mean 'Calculator'? See --help."


def test_unknown_name_without_a_near_one_lists_at_most_twelve() -> None:
    assert unknown_name("split", "zzz", ["b", "a", "a"]) == "unknown split 'zzz'. Known: 'a', 'b'."
    names = [f"name{i:02}" for i in range(15)]
    text = unknown_name("env", "zzz", names)
    assert text.endswith("'name11', and 3 more.")
    assert "name12" not in text


def test_unknown_name_among_none() -> None:
    assert unknown_name("tool", "x", []) == "unknown tool 'x'. There is no tool at all."


@pytest.mark.parametrize("name", [None, 3, "", "\ud800"])
def test_unknown_name_takes_anything(name: object) -> None:
    assert unknown_name("env", name, ["a"]) == f"unknown env {name!r}. Known: 'a'."
