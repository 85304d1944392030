"""The table of shipped agents: it has a row for each, every cell is filled, versions are the pins.

Not here: that its cells are what a run finds (`test_shipped_agents.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from katgym.environment.messages import assistant, system, user
from katgym.play.rollout import Turn
from katgym.policies.base import BranchReason, TokenRecord

from . import agents_table
from .agents_table import COLUMNS, read_table, tell
from .shipped_agents import AGENTS
from .zoo import SEEN, SUMMARY, TITLE, count_labels

PINS = Path(__file__).parents[4] / ".ci/agents"


def test_the_table_has_a_full_row_for_every_agent() -> None:
    table = read_table()
    assert set(table) == {agent.name for agent in AGENTS}
    for name, row in table.items():
        assert tuple(row) == COLUMNS
        assert not [column for column, cell in row.items() if cell in ("", "?")], name


def test_the_versions_are_those_that_are_pinned() -> None:
    for agent in AGENTS:
        name = re.escape(agent.package.removeprefix("pypi:"))
        (pin,) = re.findall(rf"(?m)(?:^|\s|\()@?{name}(?:@|==)([\d.]+)", PINS.read_text())
        assert read_table()[agent.name]["version"] == pin


def test_a_cell_that_a_run_finds_otherwise_fails_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(f"before\n{agents_table.BEGIN}\n{agents_table.END}\nafter\n")
    monkeypatch.setattr(agents_table, "GUIDE", guide)
    monkeypatch.setenv("KATGYM_AGENTS_TABLE", "write")
    tell("claude", "streams", "yes")
    tell("other", "streams", "no")
    monkeypatch.delenv("KATGYM_AGENTS_TABLE")
    tell("claude", "streams", "yes")
    assert guide.read_text().startswith("before\n") and guide.read_text().endswith("\nafter\n")
    with pytest.raises(AssertionError, match=r"says 'no', found is 'yes'.*AGENTS_TABLE=write"):
        tell("other", "streams", "yes")


def _turn(text: str, parent: int | None, branch: BranchReason | None = None) -> Turn:
    tokens = TokenRecord(parent=parent, prompt_ids=[1], completion_ids=[2], branch=branch)
    return Turn(messages=[system("s"), user("a")], answer=assistant(text), tokens=tokens)


def test_labels_are_counted_against_what_the_script_knows() -> None:
    right = [
        _turn(TITLE, None),
        _turn("one", None),
        _turn(SEEN, 1, BranchReason.SUB_AGENT),
        _turn("two", 1),
        _turn(SUMMARY, 3, BranchReason.REWRITE),
        _turn("three", 3, BranchReason.COMPACTION),
        _turn("four", 5),
    ]
    assert count_labels(right) == (7, [])
    wrong = [*right]
    wrong[2] = _turn(SEEN, 1)
    wrong[5] = _turn("three", 3, BranchReason.SUB_AGENT)
    num, found = count_labels(wrong)
    assert num == 7
    assert [line.split(" off")[0] for line in found] == [
        "2: sub-agent is None",
        "5: main is sub_agent",
    ]
