"""Error texts, and that errors survive pickling and fit the stdlib's families."""

from __future__ import annotations

import copy
import pickle

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


def test_errors_pickle_with_text_kind_and_family() -> None:
    for error, family in (
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
    ):
        assert isinstance(error, family) and isinstance(error, KatgymError)
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert getattr(again, "kind", None) == getattr(error, "kind", None)
    assert str(UnknownNameError("unknown env 'x'.")) == "unknown env 'x'."  # not its repr
    assert InfrastructureError("x").kind == "infrastructure_error"
    assert PolicyError("x").kind == "policy_unavailable"


def test_unknown_name_suggests_the_nearest_or_lists_what_there_is() -> None:
    text = unknown_name("env", "katgym/Mth-v0", ["katgym/Math-v0", "other/TicTacToe-v3"])
    assert text == "unknown env 'katgym/Mth-v0'. Did you mean 'katgym/Math-v0'?"
    text = unknown_name("tool", "CALCULATOR", ["Calculator"], hint="See --help.")
    assert text == "unknown tool 'CALCULATOR'. Did you mean 'Calculator'? See --help."
    assert unknown_name("split", "zzz", ["b", "a", "a"]) == "unknown split 'zzz'. Known: 'a', 'b'."
    text = unknown_name("env", "zzz", [f"name{i:02}" for i in range(15)])
    assert text.endswith("'name11', and 3 more.") and "name12" not in text
    assert unknown_name("tool", "x", []) == "unknown tool 'x'. There is no tool at all."
    for name in (None, 3, "", "\ud800"):
        assert unknown_name("env", name, ["a"]) == f"unknown env {name!r}. Known: 'a'."
