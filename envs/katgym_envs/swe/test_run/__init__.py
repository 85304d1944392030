"""Runs chosen tests in a sandbox and brings back one status a test. See README.md."""

from katgym_envs.swe.test_run.plan import TestPlan
from katgym_envs.swe.test_run.runner import can_be_warm, run_tests, test_spec
from katgym_envs.swe.test_run.test_run_result import TestResult, TestRun

__all__ = ["TestPlan", "TestResult", "TestRun", "can_be_warm", "run_tests", "test_spec"]
