"""Right and wrong answers of every kind, and forms of golds that the verifier reads."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from katgym_envs.math.verifier import Method, Verifier

from .verifier_kinds import RIGHT, WRONG

PAIRS: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
"""Pairs of `verifier_pairs.txt` by their kind and mark."""
for line in Path(__file__).with_name("verifier_pairs.txt").read_text(encoding="utf-8").split("\n"):
    if line.startswith("# "):
        kind = line[2:]
    elif line:
        answer, _, gold = line[2:].partition("\t")
        PAIRS[kind, line[0]].append((answer, gold))


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


@pytest.mark.parametrize(("kind", "mark"), PAIRS, ids="".join)
def test_pairs_written_beforehand_are_told_apart(verifier: Verifier, kind: str, mark: str) -> None:
    for answer, gold in PAIRS[kind, mark]:
        verdict = verifier.verify(answer, gold)
        assert verdict.is_correct == (mark == "="), (answer, gold, verdict)
        is_read = mark == "?" or verdict.method is not Method.UNSUPPORTED_GOLD
        assert is_read and verdict.method is not Method.TIMEOUT, (answer, gold, verdict)


def test_right_pairs_that_are_refused_are_at_most_five_percent() -> None:
    num = {mark: sum(len(PAIRS[key]) for key in list(PAIRS) if key[1] == mark) for mark in "=?!"}

    assert num["?"] <= 0.05 * (num["="] + num["?"])
    assert num["="] > 800 and num["!"] > 400
