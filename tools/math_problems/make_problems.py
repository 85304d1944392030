"""Writes `problems.jsonl` from the families; the same file byte for byte on every run.

    cd tools && python -m math_problems.make_problems

Not here: the problems themselves (`families/`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from math_problems.families import algebra, calculus, combinatorics, geometry, number_theory
from math_problems.families.family import MAX_INSTANCES, Draft, Family

FAMILIES: list[Family] = [
    *algebra.FAMILIES,
    *number_theory.FAMILIES,
    *combinatorics.FAMILIES,
    *geometry.FAMILIES,
    *calculus.FAMILIES,
]
PATH = Path(__file__).parents[2] / "envs" / "katgym_envs" / "math" / "data" / "problems.jsonl"


def make_lines() -> list[str]:
    """Return the lines of the file; every answer is computed and checked again."""
    lines = []
    texts: set[str] = set()
    for one in FAMILIES:
        drafts = list(one.make())
        assert 1 <= len(drafts) <= MAX_INSTANCES, one.name
        for index, draft in enumerate(drafts, start=1):
            assert draft.text not in texts, draft.text
            texts.add(draft.text)
            lines.append(_line(one, index, draft, None))
        for index, draft in enumerate(one.draw(), start=1):
            assert draft.text not in texts, draft.text
            texts.add(draft.text)
            lines.append(_line(one, index, draft, "test"))
    return lines


def _line(one: Family, index: int, draft: Draft, split: str | None) -> str:
    """Return a problem as JSON; without a split it goes where the hash of its id sends it."""
    name = one.name.replace("_", "-")
    problem_id = f"{one.subject}-{name}-{'drawn-' if split else ''}{index}"
    row: dict[str, str | int] = {
        "id": problem_id,
        "problem": draft.text,
        "answer": draft.answer,
        "subject": one.subject,
        "level": one.level,
        "kind": draft.kind,
        "split": split or _split(problem_id),
    }
    if draft.alt is not None:
        row["alt"] = draft.alt
    return json.dumps(row, ensure_ascii=False)


def _split(problem_id: str) -> str:
    bucket = int(hashlib.sha256(problem_id.encode()).hexdigest()[:8], 16) % 10
    return "validation" if bucket < 2 else "test" if bucket < 4 else "train"


if __name__ == "__main__":
    PATH.write_text("\n".join(make_lines()) + "\n", encoding="utf-8")
