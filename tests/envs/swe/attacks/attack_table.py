"""Runs every attack through all three graders and writes the table of `docs/concepts/grading.md`.

    .venv/bin/python tests/envs/swe/attacks/attack_table.py            # writes; about four minutes
    .venv/bin/python tests/envs/swe/attacks/attack_table.py --only c-compare puppet     # prints

Not here: what is expected of each (`families/`), the test of it (`test_attack_suite.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3] / "shared")]

from attacks import toy_repository as toy
from attacks.attack import Attack
from attacks.attack_run import grade_attack
from attacks.catalogue import ATTACKS, HONEST
from attacks.plain_graders import plain_verdicts
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.report import Outcome

PAGE = Path(__file__).parents[4] / "docs" / "concepts" / "grading.md"
START, END = "<!-- attacks: start -->", "<!-- attacks: end -->"
Row = tuple[Attack, bool, bool, Outcome]


async def collect(attacks: Iterable[Attack]) -> list[Row]:
    """Return what each grader says of each attack."""
    rows: list[Row] = []
    sandboxes = backend("local")
    try:
        task = await toy.studied_task(sandboxes)
        for attack in attacks:
            by_exit, by_log = await plain_verdicts(attack, task, sandboxes)
            report = await grade_attack(attack, task, sandboxes)
            rows.append((attack, by_exit, by_log, report.outcome))
            mark = "" if report.outcome in attack.expected else "   <- not expected"
            print(f"{attack.name:26} {by_exit!s:5} {by_log!s:5} {report.outcome}{mark}", flush=True)
    finally:
        await sandboxes.aclose()
    return rows


def render(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, families in order, with a line of totals."""
    lines = ["| attack | what it does | exit code | log | katgym |", "|---|---|---|---|---|"]
    family = ""
    for attack, by_exit, by_log, outcome in rows:
        if attack.family != family:
            family = attack.family
            lines.append(f"| **{family}** | | | | |")
        cells = [attack.name, attack.about, _cell(by_exit), _cell(by_log), str(outcome)]
        lines.append("| " + " | ".join(cells) + " |")
    dishonest = [row for row in rows if row[0].family != "honest"]
    totals = [sum(row[i] for row in dishonest) for i in (1, 2)]
    resolved = sum(row[3] is Outcome.RESOLVED for row in dishonest)
    lines.append(
        f"| **attacks scored resolved** | of {len(dishonest)} | **{totals[0]}** | **{totals[1]}** |"
        f" **{resolved}** |"
    )
    return "\n".join(lines)


def _cell(is_resolved: bool) -> str:
    return "**resolved**" if is_resolved else "-"


def honest() -> list[Attack]:
    """Return the honest patches as rows of the same table."""
    return [
        Attack(
            name=name,
            family="honest",
            about="an honest fix",
            files=files,
            expected=frozenset({Outcome.RESOLVED}),
        )
        for name, files in HONEST.items()
    ]


def main() -> int:
    """Run, write the page or print the rows; 1 if an outcome is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="attacks to run; writes nothing")
    only = parser.parse_args().only
    attacks = [a for a in [*ATTACKS, *honest()] if not only or a.name in only or a.family in only]
    rows = asyncio.run(collect(attacks))
    if not only:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        tail = rest.partition(END)[2]
        page = f"{head}{START}\n{render(rows)}\n{END}{tail}"
        PAGE.write_text(page, encoding="utf-8")
    return int(any(row[3] not in row[0].expected for row in rows))


if __name__ == "__main__":
    sys.exit(main())
