"""A tiny model is trained by the commands a user would type; what they refuse is the finding."""

from __future__ import annotations

import pytest

from katgym.certificate.findings import CheckReport, CheckStatus, Floor
from katgym.certificate.learnability import check_learnability

REPORT = CheckReport(
    env_id="katgym/Arithmetic-v1", checks=(), floors=(Floor(level="", num_tasks=100, constant=0.5),)
)


@pytest.mark.slow
def test_what_cannot_be_trained_fails_with_the_reason() -> None:
    check = check_learnability("nobody/Nothing-v0", {}, REPORT)
    assert (check.name, check.status) == ("learnability", CheckStatus.FAILED)
    assert "katgym train new-model says: error: unknown env 'nobody/Nothing-v0'" in check.detail


@pytest.mark.slow
def test_two_steps_teach_nothing_and_prove_nothing() -> None:
    check = check_learnability("katgym/Arithmetic-v1", {"level": 1}, REPORT, num_steps=2)
    assert check.status is CheckStatus.SKIPPED
    assert check.detail.startswith("not shown in so few steps: a mean reward of 0.0% before")
    assert (check.figures["floor"], check.figures["num_tasks"]) == (0.5, 64)


@pytest.mark.slow
def test_a_hundred_steps_of_imitation_learn_sums() -> None:
    floor = Floor(level="", num_tasks=100, constant=0.02)
    report = CheckReport(env_id="katgym/Arithmetic-v1", checks=(), floors=(floor,))
    check = check_learnability("katgym/Arithmetic-v1", {"level": 1}, report)
    assert check.status is CheckStatus.PASSED, check
    assert check.figures["after"] > 0.2
