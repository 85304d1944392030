"""The conformance suite: what every sandbox backend has to do, checked against a real one.

    report = await run_conformance(backend)          # `katgym sandbox check NAME` prints it

    @pytest.mark.parametrize("check", CHECKS, ids=str)       # in the tests of a backend
    def test_backend_conforms(check):
        asyncio.run(run_check(check, backend))

A check raises `AssertionError` with what was seen. Sandboxes need bash, coreutils and python3
inside. Not here: the interface (`katgym.sandbox.sandbox`).
"""

from katgym.sandbox.conformance.check import (
    ConformanceCheck,
    Fixture,
    check,
    checks_of,
)
from katgym.sandbox.conformance.checks import CHECKS
from katgym.sandbox.conformance.expect import ConformanceError
from katgym.sandbox.conformance.running import (
    ConformanceReport,
    ConformanceResult,
    run_check,
    run_conformance,
    select,
)

__all__ = [
    "CHECKS",
    "ConformanceCheck",
    "ConformanceError",
    "ConformanceReport",
    "ConformanceResult",
    "Fixture",
    "check",
    "checks_of",
    "run_check",
    "run_conformance",
    "select",
]
