"""Right and wrong answers of every kind, and forms of golds that the verifier reads."""

from collections.abc import Iterator

import pytest

from katgym_envs.math.verifier import Method, Verifier

from .verifier_kinds import RIGHT, WRONG


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier() as opened:
        yield opened


def test_tables_hold_every_kind_on_both_sides() -> None:
    assert set(RIGHT) == set(WRONG) | {"sets"}
    assert sum(map(len, RIGHT.values())) + sum(map(len, WRONG.values())) > 400


@pytest.mark.parametrize(
    ("answer", "gold"), [pair for pairs in RIGHT.values() for pair in pairs], ids=str
)
def test_right_answer_is_accepted(verifier: Verifier, answer: str, gold: str) -> None:
    verdict = verifier.verify(answer, gold)

    assert verdict.is_correct, verdict


@pytest.mark.parametrize(
    ("answer", "gold"), [pair for pairs in WRONG.values() for pair in pairs], ids=str
)
def test_wrong_answer_is_a_valid_failure(verifier: Verifier, answer: str, gold: str) -> None:
    verdict = verifier.verify(answer, gold)

    assert not verdict.is_correct, verdict
    assert verdict.method not in (Method.TIMEOUT, Method.UNSUPPORTED_GOLD), verdict


@pytest.mark.parametrize("kind", RIGHT)
def test_gold_of_every_kind_is_equal_to_itself_in_a_box(verifier: Verifier, kind: str) -> None:
    for _, gold in RIGHT[kind]:
        verdict = verifier.verify(rf"\boxed{{{gold}}}", gold)
        assert verdict.is_correct, (gold, verdict)
