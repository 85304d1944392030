"""The table of shipped agents in the guide: what each does through the gateway, as a run found it.

    KATGYM_AGENTS_TABLE=write KATGYM_AGENTS=$(.ci/agents) pytest -m agents    # writes it anew

Otherwise each test compares its cell with the one that is committed. Not here: what makes a cell
true (`test_shipped_agents.py`).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

GUIDE = Path(__file__).parents[4] / "docs/guides/record-agents.md"
BEGIN, END = "<!-- agents: written by the run of their tests -->", "<!-- agents: end -->"
FACTS = ("version", "API")
BEHAVIOURS = (
    "answers", "streams", "parallel calls", "tool errors", "long prompt", "resume", "sub-agents",
    "compaction", "abort", "retry after 500", "image", "usage", "labels",
)  # fmt: skip
COLUMNS = (*FACTS, *BEHAVIOURS)

Table = dict[str, dict[str, str]]
"""Name of an agent -> column -> cell."""


def read_table() -> Table:
    """Return what the guide says."""
    _, _, rest = GUIDE.read_text().partition(BEGIN)
    lines = [line for line in rest.partition(END)[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if not rows:
        return {}
    head = rows[0][1:]
    return {row[0]: dict(zip(head, row[1:], strict=True)) for row in rows[2:]}


def tell(agent: str, column: str, found: str) -> None:
    """Compare what a test found with the guide's cell, or write it there."""
    if os.environ.get("KATGYM_AGENTS_TABLE") != "write":
        committed = read_table().get(agent, {}).get(column)
        assert committed == found, (
            f"{agent}, {column}: {GUIDE.name} says {committed!r}, found is {found!r}: "
            "write the table anew with KATGYM_AGENTS_TABLE=write"
        )
        return
    with GUIDE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = read_table()
        table.setdefault(agent, {})[column] = found
        before, _, rest = file.read().partition(BEGIN)
        whole = f"{before}{BEGIN}\n{_text_of(table)}{END}{rest.partition(END)[2]}"
        file.seek(0)
        file.write(whole)
        file.truncate()


def _text_of(table: Table) -> str:
    rows = [["agent", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    rows += [[name, *(cells.get(c, "?") for c in COLUMNS)] for name, cells in table.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
