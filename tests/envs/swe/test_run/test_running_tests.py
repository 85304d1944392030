"""Real runs of real tests in real sandboxes, warm and cold."""

import pytest
from small_repository import run

from katgym.errors import UsageError
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.test_run import TestPlan

ALL_KINDS = b"""
import pytest, unittest
from pkg import add

@pytest.mark.parametrize("a, b, c", [(1, 2, 3), (1, 1, 3)])
def test_cases(a, b, c):
    assert add(a, b) == c

def test_skipped():
    pytest.skip("not here")

@pytest.mark.xfail
def test_xfailed():
    assert add(1, 1) == 3

@pytest.mark.xfail
def test_xpassed():
    assert add(1, 1) == 2

@pytest.fixture
def broken():
    raise RuntimeError("set-up")

def test_error(broken):
    pass

@pytest.fixture
def untidy():
    yield
    raise RuntimeError("tear-down")

def test_untidy(untidy):
    pass

class TestUnit(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(add(1, 2), 3)

    def test_parts(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(add(number, 1), 2)
"""
LOOP = b"""
TABLE = [(1, 2), (2, 3), (3, 5)]

def check(given, wanted):
    assert given + 1 == wanted

def test_table():
    for given, wanted in TABLE:
        check(given, wanted)
"""


@pytest.mark.parametrize("is_warm", [True, False])
def test_every_kind_of_outcome_is_told_apart(is_warm):
    done = run({"tests/test_a.py": ALL_KINDS}, is_warm=is_warm)
    assert {(r.qualname, r.ordinal): r.status.value for r in done.results} == {
        ("test_cases", 0): "passed",
        ("test_cases", 1): "failed",
        ("test_skipped", 0): "skipped",
        ("test_xfailed", 0): "xfailed",
        ("test_xpassed", 0): "xpassed",
        ("test_error", 0): "error",
        ("test_untidy", 0): "error",
        ("TestUnit::test_equal", 0): "passed",
        ("TestUnit::test_parts", 0): "failed",
    }
    assert done.was_started and done.is_finished
    assert done.disagreements == ()
    assert done.execution.exit_code == 1
    assert not done.all_passed
    failed = done.by_key()["tests/test_a.py", "test_cases", 1]
    assert (failed.phase, failed.exception, failed.is_assertion) == ("call", "AssertionError", True)
    assert (failed.message, failed.place) == ("", "")
    assert failed.node_id == "tests/test_a.py::test_cases[1-1-3]"


def test_a_detailed_run_tells_message_and_place():
    done = run({"test_l.py": LOOP}, is_detailed=True)
    (result,) = done.results
    assert result.place == "9:3>5:3"
    assert "assert (3 + 1) == 5" in result.message


CHECKS = b"""
def assert_equal(expected, result):
    if expected != result:
        print("not equal")
    assert expected == result

def assert_not_equal(expected, result):
    assert expected != result
"""
COMPARING = b"""
import unittest
from checks import assert_equal, assert_not_equal

class Own:
    def __repr__(self):
        raise ValueError("no text")
    def __eq__(self, other):
        return False

def test_plain():
    assert "citys" == "cities"

def test_list():
    assert [1, {"a": 2.5}] == [1, {"a": 3}], "told otherwise"

def test_object():
    assert Own() == 1

def test_long():
    assert "a" * 500 == "b"

def test_smaller():
    assert 3 < 2

def test_other_error():
    try:
        assert 1 == 2
    except AssertionError:
        raise KeyError("later") from None

def test_helper():
    assert_equal("right", "wrong")

def test_helper_of_another_kind():
    assert_not_equal("right", "right")

def test_true_side():
    assert (1 == 2) or not "text"

class TestUnit(unittest.TestCase):
    def test_equal(self):
        self.assertEqual("one", "two")
    def test_lists(self):
        self.assertListEqual([1], [2])
    def test_true(self):
        self.assertTrue("" == "x")
    def test_not(self):
        self.assertNotEqual(4, 4)
"""


@pytest.mark.slow
def test_a_detailed_run_tells_what_was_compared():
    files = {"test_c.py": COMPARING, "checks.py": CHECKS}
    done = run(files, files=("test_c.py",), is_detailed=True)
    assert {r.qualname: r.compared for r in done.results} == {
        "test_plain": ("'citys'", "'cities'"),
        "test_list": ("[1, {'a': 2.5}]", "[1, {'a': 3}]"),
        "test_object": None,
        "test_long": None,
        "test_smaller": None,
        "test_other_error": None,
        "test_helper": ("'right'", "'wrong'"),
        "test_helper_of_another_kind": None,
        "test_true_side": ("1", "2"),
        "TestUnit::test_equal": ("'one'", "'two'"),
        "TestUnit::test_lists": ("[1]", "[2]"),
        "TestUnit::test_true": None,
        "TestUnit::test_not": None,
    }
    assert done.disagreements == ()
    plain = run(files, files=("test_c.py",))
    assert {r.compared for r in plain.results} == {None}


def test_only_chosen_functions_run_in_the_seeds_order():
    tests = b"".join(b"def test_%d(): print(%d)\n" % (i, i) for i in range(8))
    chosen = frozenset(("test_n.py", f"test_{i}") for i in range(1, 7))
    done = run({"test_n.py": tests}, functions=chosen, seed=5)
    assert [r.qualname for r in done.results] == [f"test_{i}" for i in range(1, 7)]
    assert done.all_passed


def test_files_are_put_removed_and_linked_before_anything_runs():
    tests = (
        b"import os, stat\ndef test_files():\n"
        b"    assert not os.path.exists('old.py') and not os.path.exists('pkg/__init__.py')\n"
        b"    assert os.access('tool', os.X_OK) and open('link').read() == 'x'\n"
    )
    done = run(
        {"test_f.py": tests, "tool": b"x"},
        files=("test_f.py",),
        remove=("old.py", "pkg", "nothing"),
        executables=frozenset({"tool"}),
        links={"link": "tool"},
    )
    assert done.all_passed


def test_files_are_not_put_through_links():
    tests = b"import os\ndef test_it():\n    assert not os.path.exists('/tmp/out')\n"
    done = run({"test_f.py": tests, "away/out": b"x"}, files=("test_f.py",), links={"away": "/tmp"})
    assert done.all_passed


def test_a_module_that_cannot_be_imported_is_named():
    files = {"test_a.py": b"import nothing_like_it\n", "test_b.py": b"def test_b(): pass\n"}
    done = run(files)
    assert done.collection_errors == ("test_a.py",)
    assert done.statuses() == {"test_b.py::test_b": TestStatus.PASSED}
    assert done.disagreements == ()
    assert not done.all_passed


@pytest.mark.slow
@pytest.mark.parametrize("waiting", ["time.sleep(3600)", "pass"])
def test_a_timeout_is_a_result(waiting):
    test = f"import time\ndef test_t():\n    while True: {waiting}\n"
    done = run({"test_t.py": test.encode()}, timeout_s=2.0)
    assert done.is_timed_out and not done.is_finished
    # A busy machine may reach the wall limit first, even before a test is collected.
    assert done.execution.limit_hit in ("wall_s",) + ("cpu_s",) * (waiting == "pass")
    assert set(done.statuses().values()) <= {TestStatus.MISSING}


@pytest.mark.parametrize("is_warm", [True, False])
def test_leaving_with_success_before_the_end_disagrees(is_warm):
    done = run({"test_e.py": b"import os\nos._exit(0)\n"}, is_warm=is_warm)
    assert done.was_started and not done.is_finished
    assert done.disagreements == ("it exited with 0 before pytest came to its end",)


def test_a_crash_is_no_disagreement():
    done = run({"test_c.py": b"import os\ndef test_c(): os.kill(os.getpid(), 11)\n"})
    assert done.disagreements == ()
    assert done.execution.signal == 11
    assert done.statuses() == {"test_c.py::test_c": TestStatus.MISSING}


@pytest.mark.parametrize("is_warm", [True, False])
def test_the_process_looks_as_if_started_for_the_tests(is_warm):
    tests = (
        b"import os, signal, sys\ndef test_process():\n"
        b"    assert os.getcwd() == '/workspace' and sys.path[1] == '/workspace'\n"
        b"    assert not [m for m in sys.modules if m.startswith('katgym')]\n"
        b"    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        b"    assert os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] == '1'\n"
        b"    assert os.environ['MINE'] == 'yes' and 'XDG_CACHE_HOME' not in os.environ\n"
        b"    assert os.environ['TZ'] == 'UTC' and os.umask(0o022) == 0o022\n"
        b"    assert sys.flags.hash_randomization == 0\n"
    )
    done = run({"tests/test_p.py": tests}, is_warm=is_warm, env={"MINE": "yes"}, is_detailed=True)
    assert done.all_passed, done.results[0].message


def test_a_plan_is_checked():
    with pytest.raises(UsageError, match="at least one file"):
        TestPlan(files=())
    with pytest.raises(UsageError, match="timeout_s is > 0, got 0"):
        TestPlan(files=("t.py",), timeout_s=0)
