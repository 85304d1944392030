"""Ranks that start at different speeds meet all the same."""

from __future__ import annotations

import pytest
from started_ranks import start_each


@pytest.mark.slow  # 40 s: more than ranks wait for one that hangs
def test_a_late_rank_is_waited_for_longer_than_one_that_hangs() -> None:
    runs = start_each(2, "late_rank.py", "33")
    told = [run.communicate(timeout=600) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert [out for out, _ in told] == ["[0, 1]\n", "[0, 1]\n"]
