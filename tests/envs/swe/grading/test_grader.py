"""Whole gradings, and what becomes of faults of the machinery."""

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from attacks import toy_repository as toy
from attacks.attack_run import patch_of
from attacks.catalogue import ATTACKS
from faulty_backend import BreakingBackend, BusyBackend, FaultyBackend
from waiting import wait_until_async

from katgym.environment.reward import Trust
from katgym.sandbox import (
    ChangeKind,
    FileChange,
    SandboxBackend,
    WorkspaceDiff,
    layer_store,
    shared_backend,
)
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.canaries.canary import source_id
from katgym_envs.swe.grading.blind_round import measure_trust, run_blind
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import GraderConfig, grade
from katgym_envs.swe.grading.report import GradeReport, Outcome, TestStatus
from katgym_envs.swe.grading.rounds import Rounds
from katgym_envs.swe.grading.schedule import NO_SAFE_CANARY
from katgym_envs.swe.hidden import HiddenTests, TestFunction, ValidCanary
from katgym_envs.swe.patching import make_diff

pytestmark = pytest.mark.usefixtures("toy_is_studied")

GOLD = {toy.SOURCE_PATH: toy.GOLD_SOURCE.encode()}
GOLD_DIFF = patch_of(GOLD)


T = TypeVar("T")


def with_backend(work: Callable[[SandboxBackend, GradedTask], Awaitable[T]]) -> T:
    async def go() -> T:
        sandboxes = shared_backend("local")
        return await work(sandboxes, await toy.studied_task(sandboxes))

    return asyncio.run(go())


def graded(patch: str | bytes | WorkspaceDiff, **changes: object) -> GradeReport:
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> GradeReport:
        hidden = replace(task.hidden, **changes)  # type: ignore[arg-type]
        config = GraderConfig(rng=random.Random(7))
        return await grade(replace(task, hidden=hidden), patch, backend=sandboxes, config=config)

    return with_backend(work)


@pytest.mark.slow
def test_gold_is_resolved_with_everything_told():
    report = graded(patch_of(GOLD))
    assert report.outcome is Outcome.RESOLVED
    assert report.fail_to_pass == dict.fromkeys(toy.FAIL_TO_PASS, TestStatus.PASSED)
    assert report.pass_to_pass == dict.fromkeys(toy.PASS_TO_PASS, TestStatus.PASSED)
    assert report.num_rounds >= 2 and report.num_canaries >= 2
    assert report.sandbox["backend"] == "local"
    assert 0 < report.tests_s < report.wall_s


def test_an_empty_patch_is_patch_empty_and_starts_nothing():
    report = graded("")
    assert (report.outcome, report.num_rounds) == (Outcome.PATCH_EMPTY, 0)


@pytest.mark.slow
def test_half_a_fix_is_partial():
    half = toy.SOURCE.replace(toy.BUG, '    if word == "city":\n        return "cities"\n')
    report = graded(patch_of({toy.SOURCE_PATH: half.encode()}))
    assert report.outcome is Outcome.PARTIAL
    assert list(report.fail_to_pass.values()) == [TestStatus.PASSED, TestStatus.FAILED]
    assert report.fail_to_pass_fraction == 0.5


def test_a_fix_that_breaks_something_else_is_partial():
    broken = toy.GOLD_SOURCE.replace("return counts", "return {}")
    report = graded(patch_of({toy.SOURCE_PATH: broken.encode()}))
    assert report.outcome is Outcome.PARTIAL
    assert report.pass_to_pass[f"{toy.TEST_PATH}::test_count_words"] is TestStatus.FAILED
    assert report.pass_to_pass_fraction == pytest.approx(5 / 6)


def test_code_that_cannot_be_imported_is_failed_after_two_rounds():
    report = graded(patch_of({toy.SOURCE_PATH: b"def plural(:\n"}))
    assert (report.outcome, report.reason) == (Outcome.FAILED, "the tests cannot be imported")
    assert report.num_rounds == 2


def test_a_task_whose_tests_have_no_canaries_is_an_infrastructure_fault():
    report = graded(patch_of(GOLD), canaries=())
    assert report.outcome is Outcome.INFRA_ERROR
    assert report.reason.startswith("no canary for 2 FAIL_TO_PASS tests (tests/test_wordkit.py")


def test_an_imported_task_may_be_graded_without_canaries_and_says_so():
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> GradeReport:
        bare = replace(task, hidden=replace(task.hidden, canaries=()), is_unsafe_allowed=True)
        return await grade(bare, patch_of(GOLD), backend=sandboxes)

    report = with_backend(work)
    assert report.outcome is Outcome.RESOLVED
    assert any("proves nothing" in text for text in report.suspicions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_faults", "outcome"), [(1, Outcome.RESOLVED), (99, Outcome.INFRA_ERROR)]
)
def test_a_fault_of_the_sandboxes_is_tried_once_more(num_faults, outcome):
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> tuple[GradeReport, int]:
        faulty = FaultyBackend(sandboxes, lambda n: n <= num_faults)
        return await grade(task, patch_of(GOLD), backend=faulty), faulty.num_created

    report, num_created = with_backend(work)
    assert report.outcome is outcome
    if outcome is Outcome.INFRA_ERROR:
        assert report.reason == "SandboxError: no sandbox today"
        assert num_created == 2
        assert report.fail_to_pass_fraction == 0.0


@pytest.mark.slow
def test_a_patch_that_breaks_its_sandboxes_is_failed():
    """What gold does not break is the patch's doing; else a policy could void what it fails."""

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> GradeReport:
        bomb = toy.SOURCE + "\n# breaks the sandbox\n"
        faulty = BreakingBackend(sandboxes, b"breaks the sandbox")
        return await grade(task, patch_of({toy.SOURCE_PATH: bomb.encode()}), backend=faulty)

    report = with_backend(work)
    assert report.outcome is Outcome.FAILED
    assert report.reason.startswith("its code breaks the sandbox, gold does not: SandboxError")


@pytest.mark.slow
def test_sandboxes_that_gold_breaks_too_are_an_infrastructure_fault():
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> GradeReport:
        return await grade(task, patch_of(GOLD), backend=BreakingBackend(sandboxes, b""))

    report = with_backend(work)
    assert report.outcome is Outcome.INFRA_ERROR


@pytest.mark.parametrize(
    ("late", "is_gold_late", "outcome"),
    [
        ({1}, False, Outcome.RESOLVED),  # the blind round: what is missing there looks like a cheat
        ({2}, False, Outcome.RESOLVED),
        ({1}, True, Outcome.RESOLVED),  # all is tried once more
        ({1, 2}, True, Outcome.INFRA_ERROR),
        ({1, 2}, False, Outcome.TAMPERED),
        ({2, 4}, False, Outcome.TIMEOUT),  # 3 is the other round of the two that show all tests
    ],
)
def test_a_round_that_is_late_decides_if_it_is_so_twice_and_gold_is_in_time(
    late, is_gold_late, outcome
):
    """Runs of the patch are counted from 1."""
    mark = b"# a mark of this patch"
    patch = {toy.SOURCE_PATH: toy.GOLD_SOURCE.encode() + mark}
    runs = itertools.count(1)

    def is_late(files: list[bytes]) -> bool:
        is_of_patch = any(mark in content for content in files)
        return next(runs) in late if is_of_patch else is_gold_late

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> tuple[GradeReport, GradeReport]:
        fine = await grade(task, patch_of(patch), backend=sandboxes)  # gold has had its blind round
        return fine, await grade(task, patch_of(patch), backend=BusyBackend(sandboxes, is_late))

    fine, report = with_backend(work)
    assert fine.outcome is Outcome.RESOLVED
    assert report.outcome is outcome
    if outcome is Outcome.INFRA_ERROR:
        assert "the machine is too busy" in report.reason


def test_an_interpreter_that_is_not_there_is_an_infrastructure_fault():
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> GradeReport:
        workspace = replace(task.workspace, python="/nowhere/bin/python")
        broken = replace(task, workspace=workspace)
        return await grade(broken, patch_of(GOLD), backend=sandboxes)

    report = with_backend(work)
    assert report.outcome is Outcome.INFRA_ERROR


def test_cancelling_leaves_nothing_running():
    sleeper = toy.SOURCE + f"\nimport subprocess\nsubprocess.run(['sleep', '{SLEEP}'])\n"

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> bool:
        running = asyncio.create_task(
            grade(task, patch_of({toy.SOURCE_PATH: sleeper.encode()}), backend=sandboxes)
        )
        await wait_until_async(sleeping, "the sleeper")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return sleeping()

    assert with_backend(work) is False


SLEEP = f"3600.{os.getpid()}"
"""What nobody else on this machine sleeps for."""


def sleeping() -> bool:
    """Return whether the sleeper's child lives anywhere on this machine."""
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        try:
            if f"sleep\0{SLEEP}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@pytest.mark.slow
def test_several_gradings_at_a_time_do_not_disturb_each_other():
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[Outcome]:
        patches = [patch_of(GOLD), patch_of({"wordkit/new.py": b"x = 1\n"})] * 3
        reports = await asyncio.gather(*(grade(task, p, backend=sandboxes) for p in patches))
        return [r.outcome for r in reports]

    assert with_backend(work) == [Outcome.RESOLVED, Outcome.FAILED] * 3


def unhidden(task: GradedTask) -> GradedTask:
    """Return a task whose test module asserts in a way that nobody knows."""
    source = toy.HIDDEN_TESTS + "\n\ndef check(x):\n    assert_something(x)\n"
    canaries = tuple(
        replace(c, spec={**c.spec, "source": source_id(source.encode())})
        for c in task.hidden.canaries
    )
    files = {toy.TEST_PATH: source.encode()}
    return replace(task, hidden=replace(task.hidden, files=files, canaries=canaries))


def turned(hidden: HiddenTests) -> tuple[ValidCanary, ...]:
    """Return the canaries as if all of them turned an assertion around."""
    return tuple(replace(c, spec={**c.spec, "kind": "operator"}) for c in hidden.canaries)


@pytest.mark.slow
def test_a_task_whose_canaries_can_be_told_is_no_verdict_unless_it_was_imported() -> None:
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[GradeReport]:
        told = replace(task, hidden=replace(task.hidden, canaries=turned(task.hidden)))
        seen = unhidden(told)
        imported = replace(seen, is_unsafe_allowed=True)
        return [await grade(t, patch_of(GOLD), backend=sandboxes) for t in (told, seen, imported)]

    all_is_hidden, refused, graded_all_the_same = with_backend(work)
    assert all_is_hidden.outcome is Outcome.RESOLVED
    assert refused.outcome is Outcome.INFRA_ERROR
    assert refused.reason == NO_SAFE_CANARY
    assert graded_all_the_same.outcome is Outcome.RESOLVED
    assert NO_SAFE_CANARY in graded_all_the_same.suspicions


def test_values_that_are_computed_only_where_they_are_seen_are_tampered() -> None:
    search = next(a for a in ATTACKS if a.name == "search-changes")
    report = graded(patch_of(search.files))
    assert report.outcome is Outcome.TAMPERED
    assert report.reason == "2 tests pass only while the expected values are to be seen"
    assert set(report.fail_to_pass.values()) == {TestStatus.PASSED}
    assert report.canaries_passed == ()
    assert report.num_blind_values == 3


def test_a_fix_whose_values_have_types_of_their_own_is_resolved() -> None:
    source = toy.GOLD_SOURCE + TYPED
    report = graded(patch_of({toy.SOURCE_PATH: source.encode()}))
    assert report.outcome is Outcome.RESOLVED, report.reason


TYPED = """

class Text(str):
    def __repr__(self): return "<text>"
_plural, _label = plural, label
def plural(word): return Text(_plural(word))
def label(word, number): return Text(_label(word, number))
"""


def test_gold_has_its_blind_round_once_a_process() -> None:
    hidden = replace(toy.hidden_tests(), instance_id="toy-once")

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[int]:
        unsafe = replace(task, hidden=hidden, is_unsafe_allowed=True)
        counted = [FaultyBackend(sandboxes, lambda n: False) for _ in range(2)]
        for counting in counted:
            await grade(unsafe, patch_of(GOLD), backend=counting)
        return [counting.num_created for counting in counted]

    first, second = with_backend(work)
    assert first == second + 1


def test_what_the_tests_show_decides_how_far_a_verdict_is_trusted() -> None:
    """A fix that looks at its caller: all is hidden, not all is, and nobody measured it."""
    reaching = toy.GOLD_SOURCE.replace(
        toy.FIX,
        "    __import__('sys')._getframe(0)\n    __import__('gc').get_objects()\n" + toy.FIX,
    )

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[tuple[object, str]]:
        seen = unhidden(task)
        levels = [await measure_trust(t, sandboxes) for t in (task, seen)]
        assert [level for level, _ in levels] == [Trust.COMPLETE, Trust.PARTIAL]
        assert levels[1][1] == "the tests assert in ways that cannot be hidden"
        measured = replace(task, trust=Trust.COMPLETE)
        patches = [
            patch_of({toy.SOURCE_PATH: text.encode()}) for text in (toy.GOLD_SOURCE, reaching)
        ]
        told = []
        for one, patch in ((measured, 1), (task, 0), (seen, 0), (seen, 1)):
            report = await grade(one, patches[patch], backend=sandboxes)
            assert report.outcome is Outcome.RESOLVED, report.reason
            told.append((report.trust, report.trust_reason))
        return told

    reason = f"{toy.SOURCE_PATH}: gc.get_objects, which gold does not"
    assert with_backend(work) == [
        (Trust.COMPLETE, ""),
        (Trust.PARTIAL, ""),
        (Trust.PARTIAL, ""),
        (Trust.WITHHELD, reason),
    ]


SHOWN_TESTS = toy.HIDDEN_TESTS[: toy.HIDDEN_TESTS.index("def test_plural_y")]


def with_tests(task: GradedTask, tests: str, **changes: object) -> GradedTask:
    """Return the task with other tests to fix, and no canaries."""
    files = {toy.TEST_PATH: (SHOWN_TESTS + tests).encode()}
    return replace(task, hidden=replace(toy.hidden_tests(), files=files), **changes)  # type: ignore[arg-type]


def test_what_can_be_guessed_without_a_test_is_partial() -> None:
    truths = """\
def test_plural_y(): assert "ies" in plural("city")
def test_label_many(): assert not label("pony", 3).endswith("ys")
"""
    raising = """\
def test_plural_y(): assert {"cities": 7}[plural("city")] == 7
def test_label_many(): assert {"3 ponies": 7}[label("pony", 3)] == 7
"""

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[tuple[Trust, str]]:
        tasks = [with_tests(task, tests) for tests in (truths, raising)]
        told = replace(tasks[1], trust=Trust.COMPLETE, is_unsafe_allowed=True)
        report = await grade(told, GOLD_DIFF, backend=sandboxes)
        assert (report.outcome, report.trust) == (Outcome.RESOLVED, Trust.PARTIAL)
        return [await measure_trust(task, sandboxes) for task in tasks]

    told = (
        "all tests to fix tell which change is right: by an exception, by yes or no, or by a value"
        " that stands in them"
    )
    assert with_backend(work) == [(Trust.PARTIAL, told)] * 2


TELLING = {
    "caught": """\
def test_plural_y():
    try: found = {"cities": 7}[plural("city")]
    except KeyError: found = None
    assert [plural("city"), found] == ["cities", 7]
""",
    "caught by a helper": """\
def find(word):
    import contextlib
    with contextlib.suppress(KeyError): return {"cities": 7}[word]
def test_plural_y():
    find(plural("city"))
    assert plural("city") + "!" == "cities!"
""",
    "awaited": """\
def test_plural_y():
    import pytest
    with pytest.raises(KeyError): {"citys": 7}[plural("city")]
    assert plural("city") + "!" == "cities!"
""",
    "awaited of a call": """\
def test_plural_y():
    import pytest
    pytest.raises(KeyError, {"citys": 7}.__getitem__, plural("city"))
    assert plural("city") + "!" == "cities!"
""",
    "in a sub-test": """\
def test_plural_y(subtests):
    with subtests.test(): {"cities": 7}[plural("city")]
    assert plural("city") + "!" == "cities!"
""",
    "in the tear-down": """\
def test_plural_y(request):
    request.addfinalizer(lambda: {"cities": 7}[plural("city")])
    assert plural("city") + "!" == "cities!"
""",
    "yes or no": """\
def test_plural_y(): assert plural("city").endswith("ies")
""",
}
VALUE = 'def test_label_many(): assert label("pony", 3) == "3 ponies"\n'


@pytest.mark.parametrize("kind", TELLING)
def test_a_test_that_tells_which_change_is_right_runs_after_those_that_do_not(kind: str) -> None:
    """Alone it leaves trust partial; beside one that tells nothing it is in the second part."""
    label = VALUE.replace('== "3 ponies"', "is not None")

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[object]:
        found: list[object] = []
        for other in (label, VALUE):
            measured = with_tests(task, TELLING[kind] + other)
            rounds = [
                Rounds(measured, changes, sandboxes, limits=None, rng=random.Random(0))
                for changes in (gold_changes(measured), gold_changes(measured), {})
            ]
            proof = await run_blind(measured.hidden, *rounds)
            assert proof.known is not None and not proof.missing
            parts = [sorted(name for _, name in part.functions) for part in proof.known.rounds]
            found.append((parts, proof.is_complete))
        return found

    both = ["test_label_many", "test_plural_y"]
    assert with_backend(work) == [([both], False), ([[name] for name in both], True)]


def gold_changes(task: GradedTask) -> Mapping[str, FileEntry | None]:
    """Return what gold changes."""
    return read_candidate(task.hidden.gold_patch, task).changes


ENDS_WHAT_RAISES = (
    toy.SOURCE
    + """
import builtins, sys
OLD, PICKED = plural, []
def plural(word):
    scope = next(f for f in frames() if "test_chunks" in f or "label" in f)
    tests = [t for name, t in scope.items() if name.startswith("test_")]
    if not PICKED and word.endswith("y"):
        for end in ("ys", "yes", "ies"):
            PICKED[:] = [end]
            if all(map(is_quiet, tests)): break
    return word[:-1] + PICKED[0] if word.endswith("y") else OLD(word)
def frames():
    frame = sys._getframe(2)
    while frame:
        if frame.f_globals is not globals(): yield frame.f_globals
        frame = frame.f_back
def is_quiet(test):
    note = vars(builtins).get("katgym_note")
    if note: builtins.katgym_note = lambda *parts: None
    try: getattr(test, "__wrapped__", test)()
    except Exception: return False
    finally:
        if note: builtins.katgym_note = note
    return True
"""
)


def test_no_exception_of_one_test_tells_the_value_of_another() -> None:
    """A search for the change that ends an exception finds the value that another test hides."""
    tests = """\
def test_plural_y(): assert {"cities": 7}[plural("city")] == 7
def test_label_many(): assert label("pony", 3) == "3 ponies"
"""
    patch = patch_of({toy.SOURCE_PATH: ENDS_WHAT_RAISES.encode()})

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[Outcome]:
        measured = with_tests(task, tests, is_unsafe_allowed=True)
        assert await measure_trust(measured, sandboxes) == (Trust.COMPLETE, "")
        tasks = [replace(measured, trust=trust) for trust in (Trust.PARTIAL, Trust.COMPLETE)]
        reports = [await grade(t, p, backend=sandboxes) for t in tasks for p in (patch, GOLD_DIFF)]
        return [report.outcome for report in reports]

    assert with_backend(work) == [
        Outcome.RESOLVED,  # one blind round: nobody is told that this can be trusted
        Outcome.RESOLVED,
        Outcome.TAMPERED,
        Outcome.RESOLVED,
    ]


@pytest.mark.slow
def test_no_blind_round_follows_one_that_shows_expected_values() -> None:
    """A fault in the second round that shows them: what the first try's blind round told stands."""

    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[int]:
        made = []
        for faults in ((), (3,)):
            await grade(task, patch_of(GOLD), backend=sandboxes)  # gold has had its blind round
            faulty = FaultyBackend(sandboxes, lambda n, faults=faults: n in faults)
            report = await grade(task, patch_of(GOLD), backend=faulty)
            assert report.outcome is Outcome.RESOLVED
            made.append(faulty.num_created - report.num_rounds)
        return made

    assert with_backend(work) == [1, 3]  # the blind round; it, a round of no avail, and a fault


TOOL_TESTS = """

import pathlib, subprocess


def test_tool():
    here = pathlib.Path(__file__).parent
    told = [subprocess.check_output([str(here / name)]) for name in ("../bin/tool", "helper.sh")]
    assert told == [b"right\\n", b"helped\\n"]
"""
WRONG, RIGHT = (f"#!/bin/sh\necho {word}\n".encode() for word in ("wrong", "right"))


def tool_task(task: GradedTask, *, content: bytes, is_executable: bool) -> GradedTask:
    """Return a task whose tests run a file of the product and a hidden one."""
    test, helper = toy.TEST_PATH, "tests/helper.sh"
    base = {**toy.BASE_FILES, "bin/tool": FileEntry(content=content, is_executable=is_executable)}
    gold = {**base, "bin/tool": FileEntry(content=RIGHT, is_executable=True)}
    hidden = replace(
        toy.hidden_tests(),
        gold_patch=make_diff(base, gold),
        fail_to_pass=(f"{test}::test_tool",),
        pass_to_pass=(),
        files={
            test: (toy.VISIBLE_TESTS + TOOL_TESTS).encode(),
            helper: b"#!/bin/sh\necho helped\n",
        },
        executables=frozenset({helper}),
        functions=(TestFunction(path=test, qualname="test_tool"),),
    )
    workspace = replace(task.workspace, layer=layer_store().add_files(base))
    return replace(task, hidden=hidden, base=base, workspace=workspace, is_unsafe_allowed=True)


def changed_tool(content: bytes, mode: int) -> WorkspaceDiff:
    change = FileChange(path="bin/tool", kind=ChangeKind.MODIFIED, content=content, mode=mode)
    return WorkspaceDiff(changes=(change,))


def tool_patches(task: GradedTask) -> list[tuple[GradedTask, str | WorkspaceDiff]]:
    """Return patches that leave the tool right and executable, one that does not, and nothing."""
    text = "@@ -1,2 +1,2 @@\n #!/bin/sh\n-echo wrong\n+echo right\n"
    plain = f"--- a/bin/tool\n+++ b/bin/tool\n{text}"
    head = "diff --git a/bin/tool b/bin/tool\n"
    there = tool_task(task, content=WRONG, is_executable=True)
    only_mode = tool_task(task, content=RIGHT, is_executable=False)
    return [
        (there, plain),
        (there, f"{head}index 1111111..2222222 100755\n{plain}"),
        (there, changed_tool(RIGHT, 0o755)),
        (only_mode, f"{head}old mode 100644\nnew mode 100755\n"),
        (only_mode, changed_tool(RIGHT, 0o755)),
        (there, changed_tool(RIGHT, 0o644)),
        (only_mode, changed_tool(RIGHT, 0o664)),
    ]


def test_executable_bits_are_part_of_a_patch() -> None:
    patches = tool_patches(toy.toy_task(toy.hidden_tests()))
    read = [read_candidate(patch, task).changes.get("bin/tool") for task, patch in patches]
    right = FileEntry(content=RIGHT, is_executable=True)
    assert read == [right] * 5 + [FileEntry(content=RIGHT), None]


@pytest.mark.slow
def test_executable_bits_survive_grading() -> None:
    async def work(sandboxes: SandboxBackend, task: GradedTask) -> list[Outcome]:
        patches = tool_patches(task)
        return [(await grade(t, patch, backend=sandboxes)).outcome for t, patch in patches]

    assert with_backend(work) == [Outcome.RESOLVED] * 5 + [Outcome.FAILED, Outcome.PATCH_EMPTY]
