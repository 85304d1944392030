"""The checks of the conformance suite, one module per subject."""

from katgym.sandbox.conformance.check import ConformanceCheck, checks_of
from katgym.sandbox.conformance.checks import (
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

CHECKS: tuple[ConformanceCheck, ...] = tuple(
    found
    for module in (
        command_checks, stream_checks, process_checks, limit_checks, file_checks, link_checks,
        diff_checks, workspace_checks, isolation_checks, lifecycle_checks, call_checks,
    )
    for found in checks_of(module)
)  # fmt: skip

__all__ = ["CHECKS"]
