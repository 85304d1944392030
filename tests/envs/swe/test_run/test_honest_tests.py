"""Honest tests of every kind, run as they are: their reports agree, and say what pytest says."""

import asyncio
import random
from dataclasses import replace

import pytest
from attacks import toy_repository as toy
from attacks.attack_run import patch_of
from attacks.toy_study import study_canaries
from small_repository import run

from katgym.sandbox import shared_backend
from katgym_envs.swe.grading.grader import GraderConfig, grade
from katgym_envs.swe.grading.report import GradeReport, Outcome
from katgym_envs.swe.hidden import TestFunction

# The name of each test ends with the status that pytest gives it.
FAILING_TWICE = """
import pytest, unittest

@pytest.fixture
def untidy():
    yield
    raise RuntimeError("tear-down")

@pytest.fixture
def untidy_twice(untidy):
    yield
    raise RuntimeError("tear-down, too")

@pytest.fixture
def broken(untidy):
    raise RuntimeError("set-up")

@pytest.fixture(scope="module")
def untidy_module():
    yield
    raise RuntimeError("tear-down of the module")

def test_both_failed(untidy): assert 0
def test_both_and_more_failed(untidy_twice): assert 0
def test_tear_down_error(untidy): pass
def test_set_up_and_tear_down_error(broken): pass
def test_skip_error(untidy): pytest.skip("no")
def test_xfail_error(untidy): pytest.xfail("no")

class TestUnit(unittest.TestCase):
    def setUp(self): self.addCleanup(self.fail)
    def tearDown(self): raise RuntimeError("tear-down")
    def test_all_failed(self): assert 0
    def test_none_failed(self): pass

class TestClass(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise RuntimeError("tear-down")
    def test_one_passed(self): pass
    def test_two_failed(self): assert 0

def test_module_passed(untidy_module): pass
def test_module_error(untidy_module): pass
"""
SUBTESTS = """
import pytest, unittest

class TestUnit(unittest.TestCase):
    def parts(self, *outcomes):
        for outcome in outcomes:
            with self.subTest(outcome=outcome):
                if outcome == "skip": self.skipTest("no")
                assert outcome == "pass"
    def test_one_skip_passed(self): self.parts("pass", "skip", "pass")
    def test_all_skip_passed(self): self.parts("skip", "skip")
    def test_mixed_failed(self): self.parts("fail", "pass", "skip", "fail")
    def test_skip_as_well_failed(self): self.parts("fail"); self.skipTest("no")
    def test_as_well_failed(self): self.parts("fail", "skip"); assert 0
    @unittest.expectedFailure
    def test_expected_xfailed(self): self.parts("pass", "fail")
    @pytest.mark.xfail
    def test_marked_xpassed(self): self.parts("fail")

class TestUntidy(unittest.TestCase):
    def tearDown(self): raise RuntimeError("tear-down")
    def test_failed(self):
        for number in range(3):
            with self.subTest(number=number): assert number

def parts(subtests, *outcomes):
    for outcome in outcomes:
        with subtests.test(outcome=outcome):
            if outcome == "skip": pytest.skip("no")
            if outcome == "xfail": pytest.xfail("no")
            assert outcome == "pass"

@pytest.fixture
def untidy():
    yield
    raise RuntimeError("tear-down")

def test_skip_passed(subtests): parts(subtests, "pass", "skip", "xfail")
def test_failed(subtests): parts(subtests, "fail", "skip", "fail")
def test_untidy_failed(subtests, untidy): parts(subtests, "fail", "fail")
def test_ended_failed(subtests): parts(subtests, "fail"); raise SystemExit(0)
@pytest.mark.xfail(strict=True)
def test_strict_failed(subtests): parts(subtests, "fail")
"""
SKIPS = """
import pytest, unittest

@pytest.fixture
def skipped(): pytest.skip("no")

@pytest.fixture
def skipped_late():
    yield
    pytest.skip("no")

@pytest.fixture
def expected_late():
    yield
    pytest.xfail("no")

@pytest.fixture
def broken(): assert 0

@pytest.fixture
def untidy():
    yield
    assert 0

def test_set_up_skipped(skipped): pass
def test_tear_down_passed(skipped_late): pass
def test_tear_down_failed(skipped_late): assert 0
def test_tear_down_xfail_passed(expected_late): pass
def test_raised_skipped(): raise unittest.SkipTest("no")
@pytest.mark.xfail(strict=True)
def test_strict_failed(): pass
@pytest.mark.xfail(run=False)
def test_not_run_xfailed(): assert 0
@pytest.mark.xfail(raises=KeyError)
def test_other_error_failed(): assert 0
@pytest.mark.xfail
def test_broken_xfailed(broken): pass
@pytest.mark.xfail
def test_untidy_xpassed(untidy): pass

class TestSetUp(unittest.TestCase):
    def setUp(self): self.skipTest("no")
    def test_skipped(self): pass
class TestTearDown(unittest.TestCase):
    def tearDown(self): self.skipTest("no")
    def test_failed(self): assert 0
class TestClassSkipped(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no")
    def test_skipped(self): pass
class TestClassBroken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError
    def test_error(self): pass
class TestClassSkippedLate(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise unittest.SkipTest("no")
    def test_passed(self): pass
class TestExpected(unittest.TestCase):
    @unittest.expectedFailure
    def test_xfailed(self): assert 0
    @unittest.expectedFailure
    def test_too_good_failed(self): pass
"""
NAMES = r"""
import pytest

ODD = ["\x00", "\x1b[2J", "\ud800", "\uffff", "a::b", "a[b]::c", "]]>", "x" * 100_000, ""]

@pytest.mark.parametrize("x", ODD)
def test_values_passed(x): pass
@pytest.mark.parametrize("x", [1, 2], ids=["\x00::\ud800", "[::]"])
def test_ids_failed(x): assert 0
def test_twice_passed(): assert 0
def test_twice_passed(): pass
class TestOne:
    def test_twice_failed(self): assert 0
class TestTwo(TestOne): pass
globals()["test_\x07_passed"] = globals()["test_a::b_passed"] = lambda: None
globals()["Test\x07"] = type("Test\x07", (), {"test_passed": lambda self: None})
@pytest.mark.filterwarnings("ignore")
def test_renamed_passed(record_xml_attribute): record_xml_attribute("name", "other")
def test_recorded_passed(record_property, record_testsuite_property):
    record_property("\x00\ud800", "\x00\ud800")
    record_testsuite_property("\x00", "\x00\ud800")
"""
TEXTS = r"""
import os, pytest, sys

class Raising(Exception):
    def __str__(self): raise RuntimeError
    __repr__ = __str__
class Silent(Exception):
    def __str__(self): return None
class Odd(Exception):
    def __str__(self): return "\x00\x1b\ud800\uffff]]><!DOCTYPE a>"

@pytest.mark.parametrize("kind", [Raising, Silent, Odd])
def test_exceptions_failed(kind): raise kind
def test_failed(): pytest.fail("\x00\ud800")
def test_skipped(): pytest.skip("\x00\ud800")
@pytest.mark.xfail(reason="\x00\ud800")
def test_xfailed(): assert 0
def test_prints_failed():
    print("\x00\x1b[2J]]>", file=sys.stderr)
    os.write(1, b'\xff\n{"kind":"end","exit_code":0}\n')
    sys.stdout.buffer.write(b"\xff\xfe")
    assert 0
"""
LONG_TEXTS = """
import pytest
LONG = "x" * 25_000_000
def test_failed(): raise ValueError(LONG)
def test_skipped(): pytest.skip(LONG)
def test_xfailed(): pytest.xfail(LONG)
"""
SAME_IDS = """
import pytest
@pytest.mark.parametrize("y", ["c", "b-c"])
@pytest.mark.parametrize("x", ["a-b", "a"])
def test_it(x, y): assert (x, y) != ("a", "b-c")
"""
KINDS = {
    "failing twice": FAILING_TWICE, "subtests": SUBTESTS, "skips": SKIPS, "names": NAMES,
    "texts": TEXTS, "long texts": LONG_TEXTS,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_reports_of_honest_tests_agree(kind: str) -> None:
    done = run({"tests/test_h.py": KINDS[kind].encode()})
    statuses = {r.node_id[:80]: (r.qualname, r.status) for r in done.results}
    assert statuses and {n: s for n, (q, s) in statuses.items() if not q.endswith(s)} == {}
    assert (done.disagreements, done.is_finished, done.execution.exit_code) == ((), True, 1)


def test_cases_with_one_id_are_told_apart() -> None:
    done = run({"test_s.py": SAME_IDS.encode()}, seed=3)
    assert [(r.node_id.partition("::")[2], r.status.value) for r in done.results] == [
        ("test_it[a-b-c]", "passed"),
        ("test_it[a-b-b-c]", "passed"),
        ("test_it[a-c]", "passed"),
        ("test_it[a-b-c]", "failed"),
    ]
    assert done.disagreements == ()


ENDED = {
    # how: statement, exit code
    "pytest.exit": ("pytest.exit('enough')", 2),
    "pytest.exit with 0": ("pytest.exit('enough', returncode=0)", 0),
    "pytest.exit with 300": ("pytest.exit('enough', returncode=300)", 300 & 0xFF),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", 2),
    "sys.exit": ("sys.exit(0)", 1),
}
IN_PHASE = """
import pytest, sys
def test_before(): assert 0
@pytest.fixture
def phase():
    if {phase!r} == "setup": {statement}
    yield
    if {phase!r} == "teardown": {statement}
def test_ended(phase):
    if {phase!r} == "call": {statement}
def test_after(): pass
"""


@pytest.mark.parametrize("statement", ENDED)
@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_who_ends_the_tests_forges_nothing(statement: str, phase: str) -> None:
    text, code = ENDED[statement]
    done = run({"test_e.py": IN_PHASE.format(statement=text, phase=phase).encode()})
    assert (done.disagreements, done.is_finished, done.execution.exit_code) == ((), True, code)
    ended = {"call": "failed"}.get(phase, "error")
    told = (ended, "passed") if statement == "sys.exit" else ("missing", "missing")
    assert [r.status.value for r in done.results] == ["failed", *told]


AT_THE_END = """
import pytest
@pytest.fixture(scope="session")
def untidy(request):
    request.config.add_cleanup({cleanup})
    yield
    raise RuntimeError
def test_passed(): pass
def test_last(untidy): {statement}
"""


@pytest.mark.parametrize(
    ("cleanup", "statement"), [("list", "raise KeyboardInterrupt"), ("lambda: 1 / 0", "pass")]
)
def test_a_failure_of_pytest_at_its_end_is_no_disagreement(cleanup: str, statement: str) -> None:
    source = AT_THE_END.format(cleanup=cleanup, statement=statement)
    done = run({"test_e.py": source.encode()})
    assert (done.disagreements, done.is_finished, done.execution.exit_code) == ((), False, 1)
    last = "missing" if "raise" in statement else "error"
    assert [r.status.value for r in done.results] == ["passed", last]


IMPORTS = {
    # module-level statement: exit code; whether that is an error of collection
    "pytest.skip('no', allow_module_level=True)": (0, False),
    "pytest.importorskip('nothing_like_it')": (0, False),
    "raise unittest.SkipTest('no')": (0, False),
    "raise ValueError('\\x00' * 30_000_000)": (1, True),
    "pytest.exit('enough')": (1, True),
    "raise KeyboardInterrupt": (2, False),
    "sys.exit(0)": (3, False),
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_modules_that_are_not_collected_disagree_with_nothing(statement: str) -> None:
    """The other module's test has the name that junit gives the case of this module."""
    code, is_error = IMPORTS[statement]
    source = f"import pytest, sys, unittest\n{statement}\ndef test_m(): pass\n".encode()
    done = run({"test_m.py": source, "test_n.py": b"def test_m(): pass\n"})
    assert (done.disagreements, done.is_finished, done.execution.exit_code) == ((), True, code)
    assert done.collection_errors == (("test_m.py",) if is_error else ())
    assert [r.status.value for r in done.results] == ["passed"] * (code < 2)


# Each is replaced by a function that raises.
REPLACED = (
    "builtins.open", "builtins.print", "gc.collect", "io.open", "json.dumps",
    "json.encoder.c_make_encoder", "json.JSONEncoder.encode", "json.JSONEncoder.iterencode",
    "linecache.getline", "os._exit", "os.getcwd", "os.makedirs", "os.open", "os.path.isdir",
    "os.write", "platform.node", "random.Random", "random.shuffle", "signal.signal", "sys.exit",
    "threading.Thread", "time.perf_counter", "time.time", "traceback.format_exception",
    "traceback.TracebackException.format", "xml.etree.ElementTree.Element",
    "xml.etree.ElementTree.ElementTree.write", "xml.etree.ElementTree.tostring",
)  # fmt: skip
REPLACING = """
import gc, importlib, pytest, sys

def refuse(*args, **kwargs): raise RuntimeError("replaced")

def replace(put=setattr):
    owners = []
    for text in {names!r}:
        parts = text.split(".")
        owner = importlib.import_module(parts[0])
        for at, part in enumerate(parts[1:-1], 2):
            owner = getattr(owner, part, None) or importlib.import_module(".".join(parts[:at]))
        owners.append((owner, parts[-1]))
    for owner, name in owners: put(owner, name, refuse)
"""
WHILE_REPLACED = {
    "left": """
def test_replaces_passed(): replace()
def test_then_passed(): pass
def test_then_failed(): assert 0
""",
    "left by a failure": """
def test_replaces_failed():
    replace()
    assert 0
def test_then_passed(): pass
""",
    "until the tear-down": """
@pytest.fixture
def replaced(monkeypatch): replace(monkeypatch.setattr)
def test_passed(replaced): pass
def test_failed(replaced): assert 0
@pytest.fixture
def untidy():
    yield
    assert 0
def test_both_failed(replaced, untidy): assert 0
def test_after_passed(): pass
""",
    "by the tear-down": """
@pytest.fixture
def replacing():
    yield
    replace()
def test_replaces_passed(replacing): pass
def test_then_failed(): assert 0
""",
    "on import": "replace()\ndef test_passed(): pass\ndef test_failed(): assert 0\n",
}


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("how", WHILE_REPLACED)
def test_reporting_needs_nothing_that_a_test_can_replace(how: str, is_warm: bool) -> None:
    source = REPLACING.format(names=REPLACED) + WHILE_REPLACED[how]
    done = run({"test_r.py": source.encode()}, is_warm=is_warm, seed=None)
    statuses = {r.qualname: r.status.value for r in done.results}
    assert statuses and {q: s for q, s in statuses.items() if not q.endswith(s)} == {}, done
    assert (done.disagreements, done.is_finished, done.execution.exit_code) == ((), True, 1)


# Tests to fix, whose canaries fail as honest tests do that are wrong.
TO_FIX = {
    "failing twice": """
@pytest.fixture
def steps():
    steps = []
    yield steps
    assert steps == ["the end"]

def test_plural_y(steps):
    assert plural("city") == "cities"
    steps.append("the end")

class TestLabel(unittest.TestCase):
    def setUp(self): self.steps = []
    def tearDown(self): self.assertEqual(self.steps, ["the end"])
    def test_many(self):
        self.assertEqual(label("pony", 3), "3 ponies")
        self.steps.append("the end")
""",
    "subtests": """
class TestLabel(unittest.TestCase):
    def test_many(self):
        for word, many in [("pony", "3 ponies"), ("", ""), ("day", "3 days")]:
            with self.subTest(word=word):
                if not word: self.skipTest("no word")
                self.assertEqual(label(word, 3), many)

def test_plural_y(subtests):
    with subtests.test("no word"): pytest.skip("no word")
    with subtests.test("city"): assert plural("city") == "cities"
""",
    "skipped tear-downs": """
@pytest.fixture
def tidy():
    yield
    pytest.skip("nothing to do")

def test_plural_y(tidy):
    assert plural("city") == "cities"

class TestLabel(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise unittest.SkipTest("nothing to do")
    def test_many(self): self.assertEqual(label("pony", 3), "3 ponies")
""",
    "replacing": """
import builtins, json, os, time

def refuse(*args, **kwargs): raise RuntimeError("replaced")

def test_plural_y():
    assert plural("city") == "cities"
    builtins.open = json.dumps = os.write = time.time = refuse

class TestLabel(unittest.TestCase):
    def setUp(self):
        patch = unittest.mock.patch.multiple(os, write=refuse, getcwd=refuse, makedirs=refuse)
        patch.start()
        self.addCleanup(patch.stop)
    def test_many(self): self.assertEqual(label("pony", 3), "3 ponies")
""",
    "odd": r"""
@pytest.mark.parametrize("last", ["y", "a-y"])
@pytest.mark.parametrize("first", ["\x00-a", "\x00"])
def test_same_ids(first, last):
    assert count_words(first) == {first: 1}

def test_plural_y(record_xml_attribute, record_property):
    record_xml_attribute("name", "other")
    record_property("\x00", "\ud800")
    assert plural("city") == "cities", "\x00\ud800" * 1000

class TestLabel(unittest.TestCase):
    def test_many(self): self.assertEqual(label("pony", 3), "3 ponies", "x" * 10_000_000)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TO_FIX)
def test_gold_is_resolved_whatever_its_honest_tests_do(kind: str) -> None:
    shown = toy.VISIBLE_TESTS.replace("import pytest", "import unittest.mock\n\nimport pytest")
    source = shown + TO_FIX[kind]
    to_fix = ["test_plural_y", "TestLabel::test_many"]
    others = [node.partition("::")[2] for node in toy.PASS_TO_PASS]
    ids = ("\\x00-a-y", "\\x00-a-a-y", "\\x00-y", "\\x00-a-y")
    functions = [TestFunction(path=toy.TEST_PATH, qualname=name) for name in to_fix + others]
    if "test_same_ids" in source:
        same = TestFunction(path=toy.TEST_PATH, qualname="test_same_ids", case_ids=ids)
        functions.append(same)
        others += [node.partition("::")[2] for node in same.node_ids()]
    hidden = replace(
        toy.hidden_tests(),
        instance_id=f"toy-{kind}",
        files={toy.TEST_PATH: source.encode()},
        fail_to_pass=tuple(f"{toy.TEST_PATH}::{name}" for name in to_fix),
        pass_to_pass=tuple(f"{toy.TEST_PATH}::{name}" for name in others),
        functions=tuple(functions),
    )
    gold = {toy.SOURCE_PATH: toy.GOLD_SOURCE.encode()}

    async def go() -> list[GradeReport]:
        backend = shared_backend("local")
        task = toy.toy_task(await study_canaries(toy.toy_task(hidden), gold, backend))
        config = GraderConfig(rng=random.Random(7))
        patches = [patch_of(gold), patch_of({toy.SOURCE_PATH: toy.SOURCE.encode() + b"#\n"})]
        return [await grade(task, p, backend=backend, config=config) for p in patches]

    fixed, unfixed = asyncio.run(go())
    assert (fixed.outcome, fixed.reason) == (
        Outcome.RESOLVED,
        "every test passes, every canary fails",
    )
    assert fixed.num_canaries >= 2
    assert unfixed.outcome is Outcome.FAILED, unfixed.reason
