"""The catalogue in the docs says what the certificates beside the plugins' modules say."""

from __future__ import annotations

import make_certificates
from katgym.certificate.findings import Check, CheckReport, CheckStatus, Floor


def test_the_page_is_that_of_the_certificates() -> None:
    assert make_certificates.PAGE.read_text(encoding="utf-8") == make_certificates.page(), (
        "run python tools/make_certificates.py --only-page"
    )


def test_a_row_tells_tasks_floors_marks_and_failures() -> None:
    report = CheckReport(
        env_id="acme/Odd-v0",
        checks=[
            Check(name="tasks", status=CheckStatus.PASSED, figures={"num_train": 2000.0}),
            Check(name="oracle", status=CheckStatus.FAILED, detail="0.5 of a|b"),
        ],
        floors=[Floor(level="", num_tasks=10, constant=0.4, random=0.1, oracle=0.5)],
    )
    row = make_certificates.table([report]).splitlines()[-1]
    assert row == (
        "| `acme/Odd-v0` | 2,000 train | 40% **!** | 10% |  | 50% | 10 | `oracle`: 0.5 of a/b |"
    )
    assert make_certificates.table([]) == ""
    checks = [Check(name="leak_order", status=CheckStatus.SKIPPED, detail="too few tasks")]
    row = make_certificates.table([CheckReport(env_id="acme/Few-v0", checks=checks)])
    assert row.splitlines()[-1] == "| `acme/Few-v0` |  |  |  |  |  |  | passes, 1 skipped |"
