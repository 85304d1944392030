"""Importing this runs one tiny pytest session, so that those in forks of the process are quick.

A module for `SandboxSpec.preload`, after "pytest": importing is all a preloaded module can do. It
fills the caches that a first session fills (regular expressions, byte code specialisation), about
10 ms of each later one. Standard library and pytest only. Not here: real test runs
(`katgym_envs.swe.test_run`).
"""

# ruff: noqa: PTH118, PTH123
# (the launcher has no use for pathlib)

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile

_NAME = "test_katgym_rehearsal"
_TESTS = """
import unittest
def test_pass(): assert 1
def test_fail(): assert 0
class TestUnit(unittest.TestCase):
    def test_equal(self): self.assertEqual(1, 1)
"""


def rehearse() -> int:
    """Run a session of three tests in a temporary folder, undo its traces, return its exit code."""
    import pytest

    folder = tempfile.mkdtemp(prefix="katgym-rehearsal-")
    path, modules, flags = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    environment = dict(os.environ)
    sys.dont_write_bytecode = True
    try:
        with open(os.path.join(folder, _NAME + ".py"), "w", encoding="utf-8") as file:
            file.write(_TESTS)
        arguments = [
            "-q", "-c", os.devnull, "--rootdir", folder,
            "--junitxml", os.path.join(folder, "junit.xml"), "--tb=native", "--assert=plain",
            "--color=no", "--no-header", "--no-summary",
        ]  # fmt: skip
        for name in ("cacheprovider", "faulthandler", "threadexception", "unraisableexception"):
            arguments += ["-p", "no:" + name]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            return int(pytest.main([*arguments, os.path.join(folder, _NAME + ".py")]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        sys.dont_write_bytecode = flags
        for name in set(sys.modules) - modules:
            if name == _NAME:
                del sys.modules[name]


rehearse()
