"""Certificates of every registered env, written beside their plugins' modules, and the docs' table.

    python tools/make_certificates.py                      # every id: about 40 minutes on two cores
    python tools/make_certificates.py 'katgym/Chess-*'     # some
    python tools/make_certificates.py --only-table         # docs/certificates.md alone

Not here: the checks (`katgym/certificate/`).
"""

from __future__ import annotations

import argparse
import fnmatch
from importlib import resources
from pathlib import Path

from katgym.certificate.certify import check_env
from katgym.certificate.findings import CheckReport
from katgym.certificate.published import FILE, read_file, to_json
from katgym.plugins import list_plugins, registry

TABLE = Path(__file__).parents[1] / "docs" / "certificates.md"
HEADER = """\
# Certificates of the built-in envs and plugins

Made by `python tools/make_certificates.py`; [what each check proves](concepts/certificates.md), and
what it does not. `katgym envs ID` shows the floors of every level. *Constant* is what the best
constant answer earns on the test tasks of the env as it is made; **!** marks envs where it is above
30 %, on any level. Figures are of {num} test tasks at most.

{num_passed} of {num_envs} pass every check that applies. Not measured: {missing}.

| env | constant | random | echo | fails |
|---|---|---|---|---|
"""
LINE = "| `{env_id}` | {constant}{mark} | {random} | {echo} | {failed} |\n"
MAX_DETAIL = 160


def package_file(plugin: str) -> Path:
    """Return where the certificates of a plugin lie."""
    module = next(info.module for info in list_plugins() if info.name == plugin)
    return Path(str(resources.files(module.rpartition(".")[0]))) / FILE


def read_all() -> dict[str, CheckReport]:
    """Return every certificate there is: env id -> certificate."""
    plugins = dict.fromkeys(spec.plugin for spec in registry.list_envs())
    files = [path for plugin in plugins if (path := package_file(plugin)).is_file()]
    known = {spec.id for spec in registry.list_envs()}
    found = {report.env_id: report for path in files for report in read_file(path)}
    return {env_id: found[env_id] for env_id in sorted(known & found.keys())}


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


def table(reports: dict[str, CheckReport]) -> str:
    """Return the page of the docs."""
    lines = []
    for env_id, report in reports.items():
        whole = report.floors[0] if report.floors else None
        failed = [f"`{c.name}`: {c.detail[:MAX_DETAIL].replace('|', '/')}" for c in report.failures]
        lines.append(
            LINE.format(
                env_id=env_id,
                constant=percent(whole.constant) if whole else "",
                mark=" **!**" if report.marks else "",
                random=percent(whole.random) if whole else "",
                echo=percent(whole.echo) if whole else "",
                failed="; ".join(failed).replace("\n", " "),
            )
        )
    num = max((floor.num_tasks for r in reports.values() for floor in r.floors), default=0)
    num_passed = sum(report.ok for report in reports.values())
    missing = [f"`{spec.id}`" for spec in registry.list_envs() if spec.id not in reports]
    head = HEADER.format(
        num=num,
        num_passed=num_passed,
        num_envs=len(reports),
        missing=", ".join(missing) or "none",
    )
    return head + "".join(lines)


def main() -> None:
    """Check what the command line names, and write the table."""
    parser = argparse.ArgumentParser(description="Make the certificates of all envs.")
    parser.add_argument("patterns", nargs="*", default=["*"], help="ids, or patterns of them")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a check (10)")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of the contract's checks (8)")
    parser.add_argument("--only-table", action="store_true", help="check nothing")
    args = parser.parse_args()
    for spec in registry.list_envs():
        if args.only_table or not any(fnmatch.fnmatch(spec.id, p) for p in args.patterns):
            continue
        report = certify(spec.id, spec.plugin, num_tasks=args.tasks, budget_s=args.budget)
        failed = ", ".join(check.name for check in report.failures) or "passes"
        print(f"{report.seconds:6.1f} s  {spec.id}  {failed}", flush=True)
    TABLE.write_text(table(read_all()), encoding="utf-8")


if __name__ == "__main__":
    main()
