"""Certificates of every registered env, written beside their plugins' modules, and the catalogue.

    python tools/make_certificates.py                      # every id: about 40 minutes on two cores
    python tools/make_certificates.py 'katgym/Chess-*'     # some
    python tools/make_certificates.py --only-page          # docs/plugins.md alone

A plugin that is not installed keeps its certificates. Not here: the checks (`katgym/certificate/`).
"""

from __future__ import annotations

import argparse
import fnmatch
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from katgym.certificate.certify import check_env
from katgym.certificate.findings import CheckReport, CheckStatus
from katgym.certificate.published import FILE, read_file, to_json
from katgym.plugins import list_plugins, registry

REPO = Path(__file__).parents[1]
PAGE = REPO / "docs" / "plugins.md"
HEADER = """\
# Plugins and their envs

What this repository holds, as measured by `python tools/make_certificates.py`:
[what each check proves](concepts/certificates.md), and what it does not. `katgym envs ID` shows the
floors of every level. *Constant* is what the best constant answer earns on the test tasks of the
env as it is made; **!** marks envs where it is above 30 %, on any level; *oracle* is the env's own
solution; *of* is the number of test tasks that were played within the budget.

{num_passed} of {num_envs} envs pass every check that applies.
"""
SECTION = """
## {name}

{description} [More](../{folder}README.md).
"""
TABLE = """
| env | tasks | constant | random | echo | oracle | of | certificate |
|---|---|---|---|---|---|---|---|
"""
LINE = (
    "| `{env_id}` | {tasks} | {constant}{mark} | {random} | {echo} | {oracle} | {num} | {told} |\n"
)
MAX_DETAIL = 160


def package_file(plugin: str) -> Path:
    """Return where the certificates of a plugin lie."""
    module = next(info.module for info in list_plugins() if info.name == plugin)
    return Path(str(resources.files(module.rpartition(".")[0]))) / FILE


def certify(env_id: str, plugin: str, *, num_tasks: int, budget_s: float) -> CheckReport:
    """Check one env and put its certificate into the plugin's file."""
    report = check_env(env_id, num_tasks=num_tasks, budget_s=budget_s)
    path = package_file(plugin)
    kept = {old.env_id: old for old in read_file(path)} if path.is_file() else {}
    known = {spec.id for spec in registry.list_envs() if spec.plugin == plugin}
    kept = {key: old for key, old in kept.items() if key in known} | {env_id: report}
    path.write_text(to_json([kept[key] for key in sorted(kept)]), encoding="utf-8")
    return report


def percent(value: float | None) -> str:
    """Return a share as text, "" for none."""
    return "" if value is None else f"{value:.0%}"


def table(reports: Sequence[CheckReport]) -> str:
    """Return the table of a distribution's envs; "" for none."""
    lines = []
    for report in reports:
        whole = report.floors[0] if report.floors else None
        failed = [f"`{c.name}`: {c.detail[:MAX_DETAIL].replace('|', '/')}" for c in report.failures]
        num_skipped = sum(check.status is CheckStatus.SKIPPED for check in report.checks)
        passes = f"passes, {num_skipped} skipped" if num_skipped else "passes"
        sizes = next((c.figures for c in report.checks if c.name == "tasks"), {})
        lines.append(
            LINE.format(
                env_id=report.env_id,
                tasks=", ".join(f"{num:,.0f} {name[4:]}" for name, num in sizes.items()),
                constant=percent(whole.constant) if whole else "",
                mark=" **!**" if report.marks else "",
                random=percent(whole.random) if whole else "",
                echo=percent(whole.echo) if whole else "",
                oracle=percent(whole.oracle) if whole else "",
                num=whole.num_tasks if whole else "",
                told="; ".join(failed).replace("\n", " ") or passes,
            )
        )
    return TABLE + "".join(lines) if lines else ""


def page() -> str:
    """Return the page of the docs: each distribution of the repository, with its envs."""
    every: list[CheckReport] = []
    sections = []
    for file in (REPO / "pyproject.toml", *sorted(REPO.glob("plugins/*/pyproject.toml"))):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        own = REPO / "envs" if file.parent == REPO else file.parent
        reports = [report for path in sorted(own.rglob(FILE)) for report in read_file(path)]
        reports.sort(key=lambda report: report.env_id)
        folder = file.parent.relative_to(REPO).as_posix().removeprefix(".")
        sections.append(
            SECTION.format(
                name=project["name"],
                description=project["description"],
                folder=f"{folder}/" if folder else "",
            )
            + table(reports)
        )
        every += reports
    num_passed = sum(report.ok for report in every)
    head = HEADER.format(num_passed=num_passed, num_envs=len(every))
    return head + "".join(sections)


def main() -> None:
    """Check what the command line names, and write the page."""
    parser = argparse.ArgumentParser(description="Make the certificates of all envs.")
    parser.add_argument("patterns", nargs="*", default=["*"], help="ids, or patterns of them")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a check (10)")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of the contract's checks (8)")
    parser.add_argument("--only-page", action="store_true", help="check nothing")
    args = parser.parse_args()
    for spec in registry.list_envs():
        if args.only_page or not any(fnmatch.fnmatch(spec.id, p) for p in args.patterns):
            continue
        report = certify(spec.id, spec.plugin, num_tasks=args.tasks, budget_s=args.budget)
        failed = ", ".join(check.name for check in report.failures) or "passes"
        print(f"{report.seconds:6.1f} s  {spec.id}  {failed}", flush=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
