"""What every sandbox backend has to do, as checks that run against a real one.

    report = await run_conformance(backend)          # `katgym sandbox check NAME` prints it

    @pytest.mark.parametrize("check", CHECKS, ids=str)       # in the tests of a backend
    def test_backend_conforms(check):
        asyncio.run(run_check(check, backend))

A check raises `AssertionError` with what was seen. Sandboxes need bash, coreutils and python3
inside. Not here: the interface (`katgym.sandbox.base`).
"""

from katgym.sandbox.conformance import (
    call_checks,
    command_checks,
    diff_checks,
    file_checks,
    isolation_checks,
    lifecycle_checks,
    limit_checks,
    link_checks,
    process_checks,
    stream_checks,
    workspace_checks,
)
from katgym.sandbox.conformance.check import Check, ConformanceError, Lab, check, checks_of
from katgym.sandbox.conformance.running import (
    CheckResult,
    ConformanceReport,
    run_check,
    run_conformance,
    select,
)

CHECKS: tuple[Check, ...] = (
    *checks_of(command_checks),
    *checks_of(stream_checks),
    *checks_of(process_checks),
    *checks_of(limit_checks),
    *checks_of(file_checks),
    *checks_of(link_checks),
    *checks_of(diff_checks),
    *checks_of(workspace_checks),
    *checks_of(isolation_checks),
    *checks_of(lifecycle_checks),
    *checks_of(call_checks),
)

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "Lab",
    "check",
    "checks_of",
    "run_check",
    "run_conformance",
    "select",
]
