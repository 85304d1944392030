"""Run the tests that failed once more, each alone in a process; fail if one fails again.

    python -m pytest --report-log=build/reports.jsonl
    python tools/run_again.py build/reports.jsonl

A test that passes alone is load-sensitive: a defect of the test (or of what it tests), which is to
be mended next, but no reason to hold back a change. At most five are; more are a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAX_LOAD_SENSITIVE = 5


def main() -> int:
    """Return 0 if every failed test passes now, and there are few of them."""
    (log,) = sys.argv[1:]
    failures = first_failures(Path(log))
    if not failures:
        print("run_again: pytest failed, but no test did: see its output above")
        return 1
    if len(failures) > MAX_LOAD_SENSITIVE:
        print(f"run_again: {len(failures)} failed; above {MAX_LOAD_SENSITIVE} none is run again")
        return 1
    again = {test: subprocess.run(command(test), check=False).returncode for test in failures}
    passed = [test for test, code in again.items() if code == 0]
    if passed:
        print(f"\n== LOAD-SENSITIVE: {len(passed)} failed at first and passed alone")
        for test in passed:
            print(f"\n-- {test}\n{failures[test]}")
    failed = [test for test, code in again.items() if code]
    for test in failed:
        print(f"== FAILED TWICE: {test}")
    return int(bool(failed))


def command(test: str) -> list[str]:
    """Return what runs one test, whatever marks it has."""
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "", test]


def first_failures(log: Path) -> dict[str, str]:
    """Return each failed test, or file that could not be collected, and what it said first."""
    found: dict[str, str] = {}
    for line in log.read_text("utf-8").splitlines():
        report = json.loads(line)
        if report.get("outcome") == "failed":
            found.setdefault(report["nodeid"], text_of(report["longrepr"]))
    return found


def text_of(longrepr: object) -> str:
    """Return a failure as pytest prints it in short: where, and the error."""
    if not isinstance(longrepr, dict):
        return str(longrepr)
    crash = longrepr.get("reprcrash") or {}
    return f"{crash.get('path')}:{crash.get('lineno')}: {crash.get('message', longrepr)}"


if __name__ == "__main__":
    raise SystemExit(main())
