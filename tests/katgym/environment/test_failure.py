"""The failure table answers its three questions for every kind."""

from __future__ import annotations

import pytest

from katgym.environment.failure import FAILURE_TABLE, FailureKind, RolloutStatus, failure_kind

# kind -> cause, is_retried, is_graded, is_counted
EXPECTED = {
    "max_turns": ("policy", False, True, True),
    "max_tokens": ("policy", False, True, True),
    "context_length": ("policy", False, True, True),
    "episode_timeout": ("policy", False, True, True),
    "verifier_timeout": ("policy", False, False, True),
    "policy_unavailable": ("infrastructure", True, False, False),
    "policy_timeout": ("infrastructure", True, False, False),
    "policy_bad_response": ("infrastructure", True, False, False),
    "policy_no_logprobs": ("infrastructure", False, False, False),
    "policy_rejected": ("infrastructure", False, False, False),
    "env_timeout": ("infrastructure", True, False, False),
    "sandbox_error": ("infrastructure", True, False, False),
    "verifier_unavailable": ("infrastructure", True, False, False),
    "infrastructure_error": ("infrastructure", True, False, False),
    "env_error": ("bug", False, False, False),
    "scorer_error": ("bug", False, False, False),
    "policy_bug": ("bug", False, False, False),
    "cancelled": ("user", False, False, False),
}


def test_table_holds_every_kind_and_what_was_decided() -> None:
    table = {
        str(kind): (rule.cause, rule.is_retried, rule.is_graded, rule.is_counted)
        for kind, rule in FAILURE_TABLE.items()
    }
    assert table == EXPECTED
    assert set(FAILURE_TABLE) == set(FailureKind)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_what_the_policy_did_counts(kind: FailureKind) -> None:
    rule = FAILURE_TABLE[kind]
    assert rule.is_counted == (rule.cause == "policy")
    assert not (rule.is_counted and rule.is_retried)
    assert not rule.is_graded or rule.is_counted


def test_failure_kind_of_unlisted_values() -> None:
    assert failure_kind("sandbox_error") is FailureKind.SANDBOX_ERROR
    assert failure_kind("my_plugins_own") is FailureKind.INFRASTRUCTURE_ERROR


def test_statuses() -> None:
    assert [str(s) for s in RolloutStatus] == ["terminated", "truncated", "failed", "cancelled"]
