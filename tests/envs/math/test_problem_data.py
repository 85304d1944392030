"""The shipped problems: reproducible, spread over subjects and splits, graded as they should be."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_proof import prove
from nightly import some_of

from katgym_envs.math.verifier import Method, get_shared_verifier
from math_problems import make_problems

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in make_problems.PATH.read_text(encoding="utf-8").splitlines()
]


verify = get_shared_verifier().verify


def test_file_is_what_the_families_make() -> None:
    def compare() -> None:
        made = "\n".join(make_problems.make_lines()) + "\n"
        assert make_problems.PATH.read_bytes() == made.encode()

    generator = sorted(Path(make_problems.__file__).parent.rglob("*.py"))
    prove("math problems", [make_problems.PATH, *generator], compare)


def test_ids_and_texts_are_unique() -> None:
    assert len(ROWS) >= 200
    assert len({row["id"] for row in ROWS}) == len({row["problem"] for row in ROWS}) == len(ROWS)


def test_problems_are_spread_over_subjects_splits_levels_and_kinds() -> None:
    subjects = Counter(row["subject"] for row in ROWS)
    splits = Counter(row["split"] for row in ROWS)
    kinds = Counter(row["kind"] for row in ROWS)

    assert set(subjects) == {"algebra", "number_theory", "combinatorics", "geometry", "calculus"}
    assert min(subjects.values()) >= 35
    assert set(splits) == {"train", "validation", "test"}
    assert min(splits.values()) >= 20
    assert {row["level"] for row in ROWS} == {1, 2, 3, 4, 5}
    assert all(kinds[kind] >= 15 for kind in ("fraction", "radical", "interval", "set", "matrix"))


def test_no_family_floods_the_set() -> None:
    families = Counter(row["id"].rsplit("-", 1)[0] for row in ROWS)
    drawn = {name for name in families if name.endswith("-drawn")}

    assert len(families) - len(drawn) >= 60
    assert max(families[name] for name in families if name not in drawn) <= 4
    assert max(families[name] for name in drawn) <= 12


def test_there_are_500_test_problems_and_no_answer_is_frequent() -> None:
    answers = Counter(row["answer"] for row in ROWS if row["split"] == "test")

    assert sum(answers.values()) >= 500
    assert max(answers.values()) <= 0.02 * sum(answers.values())


def test_gold_and_its_other_form_are_accepted() -> None:
    for row in some_of(ROWS, 150):
        gold = row["answer"]
        for answer in (gold, row.get("alt", gold), f"$ {gold} $."):
            verdict = verify(answer, gold)
            assert verdict.is_correct, (row["id"], answer, verdict)


def test_gold_of_another_problem_of_the_kind_is_rejected() -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in ROWS:
        by_kind.setdefault(row["kind"], []).append(row)
    pairs = [
        (row, other)
        for rows in by_kind.values()
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
        if other["answer"] != row["answer"]
    ]
    assert len(pairs) >= 200
    for row, other in some_of(pairs, 200):
        verdict = verify(other["answer"], row["answer"])
        assert not verdict.is_correct, (other["id"], row["id"], verdict)
        assert verdict.method in (Method.EXACT, Method.SYMBOLIC)


@pytest.mark.slow
def test_problem_text_does_not_hold_its_answer() -> None:
    """No formula of a statement is worth the point by itself."""
    for row in ROWS:
        formulas = row["problem"].split("$")[1::2]
        right_sides = [part for text in formulas for part in (text, text.split("=")[-1])]
        for text in (text for text in right_sides if len(text) > 3):
            assert not verify(text, row["answer"]).is_correct, (row["id"], text)
