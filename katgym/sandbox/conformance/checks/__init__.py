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

CHECKS: tuple[ConformanceCheck, ...] = (
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

__all__ = ["CHECKS"]
