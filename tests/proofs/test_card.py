"""Training steps on a card that is not there: they run, and ask no more of it than before.

Subjects and their rows: `trainer/benchmarks/counted_steps.py`. All others are counted nightly
(`tests/trainer/test_fake_card.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "trainer/benchmarks"))

import counted_steps

pytestmark = pytest.mark.proof


def test_steps_ask_no_more_of_a_card_than_before(tmp_path: Path) -> None:
    assert counted_steps.check(dict(counted_steps.list_gate(tmp_path))) == []
