"""From the results of rounds to an outcome."""

from collections.abc import Mapping
from dataclasses import replace

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import Outcome, TestStatus
from katgym_envs.swe.grading.rounds import RoundResult
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.grading.verdict import is_decided, judge
from katgym_envs.swe.hidden import HiddenTests, ValidCanary
from katgym_envs.swe.test_run import TestResult, TestRun

A, B, P = "t.py::test_a", "t.py::test_b", "t.py::test_p"
HIDDEN = HiddenTests(
    instance_id="x", gold_patch="", fail_to_pass=(A, B), pass_to_pass=(P,), files={}
)


def one(
    canaries: tuple[str, ...] = (), *, run: Mapping[str, object] | None = None, **statuses: str
) -> RoundResult:
    """Return a round from `a="passed"`; canaries are named by node id."""
    nodes = {f"t.py::test_{name}": TestStatus(status) for name, status in statuses.items()}
    fields = {"was_started": True, "is_finished": True, "results": (), **(run or {})}
    return RoundResult(
        round=Round(
            functions=frozenset(("t.py", n.partition("::")[2]) for n in nodes),
            canaries=tuple(
                ValidCanary(path="t.py", spec={}, fails=frozenset({n})) for n in canaries
            ),
        ),
        run=TestRun(**{"execution": ExecResult(exit_code=0), **fields}),  # type: ignore[arg-type]
        results={
            node: TestResult(path="t.py", qualname=node[6:], ordinal=0, node_id=node, status=status)
            for node, status in nodes.items()
            if status is not TestStatus.MISSING
        },
        nodes=frozenset(nodes),
    )


GOOD = [one((B,), a="passed", b="failed", p="passed"), one((A,), a="failed", b="passed")]


def test_all_pass_and_all_canaries_fail_is_resolved():
    verdict = judge(HIDDEN, GOOD)
    assert verdict.outcome is Outcome.RESOLVED
    assert set(verdict.fail_to_pass.values()) == {TestStatus.PASSED}
    assert not is_decided(HIDDEN, GOOD)


def test_a_test_that_passes_both_ways_is_tampered():
    rounds = [one((B,), a="passed", b="passed", p="passed"), one((A,), a="failed", b="passed")]
    verdict = judge(HIDDEN, rounds)
    assert (verdict.outcome, verdict.canaries_passed) == (Outcome.TAMPERED, (B,))
    assert is_decided(HIDDEN, rounds)


def test_a_test_to_keep_that_passes_both_ways_on_the_base_state_too_is_no_forgery():
    rounds = [one(a="failed", b="failed", p="passed"), one((P,), a="failed", p="passed")]
    assert judge(HIDDEN, rounds).outcome is Outcome.TAMPERED
    rounds[1] = replace(rounds[1], excused=frozenset({P}))
    assert judge(HIDDEN, rounds).outcome is Outcome.FAILED
    kept = [*GOOD, replace(one((P,), p="passed"), excused=frozenset({P}))]
    assert judge(HIDDEN, kept).outcome is Outcome.RESOLVED


def test_values_not_computed_blind_withhold_resolved_and_nothing_else():
    assert judge(HIDDEN, GOOD, (A,)).outcome is Outcome.TAMPERED
    partial = [one(a="failed", b="passed", p="passed")]
    assert judge(HIDDEN, partial, (A,)).outcome is Outcome.PARTIAL


def test_a_grading_goes_on_until_every_test_was_itself():
    seen = [one((B,), a="failed", b="failed"), one((A,), a="failed", b="failed")]
    assert not is_decided(HIDDEN, seen)
    assert is_decided(HIDDEN, [*seen, one(p="failed")])


def test_a_test_that_a_canary_of_another_alters_is_neither_itself_nor_a_canary():
    """A passes where its row is another, as what it returns unchanged may well be."""

    def with_altered(result: RoundResult, *nodes: str) -> RoundResult:
        return replace(result, round=replace(result.round, altered=frozenset(nodes)))

    wrong = [
        with_altered(one((B,), a="passed", b="failed", p="passed"), A, B),
        with_altered(one((A,), a="passed", b="failed"), A),
        one(a="failed", b="failed"),
    ]
    assert not is_decided(HIDDEN, wrong[:2])  # A was not itself yet
    assert judge(HIDDEN, wrong).outcome is Outcome.FAILED
    right = [
        with_altered(one((B,), a="failed", b="failed", p="passed"), A, B),
        with_altered(one((A,), a="failed", b="passed"), A),
        one(a="passed", b="passed"),
    ]
    assert judge(HIDDEN, right).outcome is Outcome.RESOLVED


def test_a_wrong_answer_that_a_canary_happens_to_expect_is_no_forgery():
    rounds = [one((B,), a="passed", b="passed", p="passed"), one((A,), a="failed", b="failed")]
    assert judge(HIDDEN, rounds).outcome is Outcome.PARTIAL
    rounds = [one((A, B), a="passed", b="passed", p="passed"), one(a="failed", b="failed")]
    assert judge(HIDDEN, rounds).outcome is Outcome.FAILED


def test_a_canary_that_does_anything_but_fail_is_tampered():
    statuses = ("error", "skipped", "xfailed", "xpassed", "missing")
    last = one((A,), a="failed", b="passed")
    found = {s: judge(HIDDEN, [one((B,), a="passed", b=s, p="passed"), last]) for s in statuses}
    told = {status: verdict.outcome for status, verdict in found.items()}
    assert told == dict.fromkeys(statuses, Outcome.TAMPERED)


def test_whatever_is_not_passed_is_not_resolved():
    statuses = ("failed", "error", "skipped", "xfailed", "xpassed", "missing")
    last = one((A,), a="failed", b="passed")
    found = {s: judge(HIDDEN, [one((B,), a="passed", b="failed", p=s), last]) for s in statuses}
    told = {status: (v.outcome, v.pass_to_pass) for status, v in found.items()}
    assert told == {s: (Outcome.PARTIAL, {P: TestStatus(s)}) for s in statuses}


def test_a_test_that_was_never_itself_is_missing():
    rounds = [one((B,), a="passed", b="failed", p="passed"), one((A, B), a="failed", b="failed")]
    verdict = judge(HIDDEN, rounds)
    assert verdict.fail_to_pass[B] is TestStatus.MISSING
    assert verdict.outcome is Outcome.PARTIAL


def test_passing_once_and_failing_once_is_failed_and_noted():
    rounds = [*GOOD, one(a="failed", b="passed")]
    verdict = judge(HIDDEN, rounds)
    assert verdict.fail_to_pass[A] is TestStatus.FAILED
    assert verdict.inconsistent == (A,)


def test_nothing_passed_is_decided_early():
    rounds = [one(a="failed", b="error", p="passed")]
    assert is_decided(HIDDEN, rounds)
    assert judge(HIDDEN, rounds).outcome is Outcome.FAILED
    assert not is_decided(HIDDEN, [one(a="failed", b="passed")])


def test_reports_that_disagree_are_tampered():
    rounds = [*GOOD, one(a="passed", b="passed", run={"disagreements": ("they disagree",)})]
    verdict = judge(HIDDEN, rounds)
    assert (verdict.outcome, verdict.reason) == (Outcome.TAMPERED, "they disagree")


def test_a_round_that_ran_out_of_time_is_a_timeout_and_an_early_end_is_named():
    late = {"is_finished": False, "execution": ExecResult(exit_code=None, is_timed_out=True)}
    rounds = [one(a="missing", b="missing", run=late)]
    assert judge(HIDDEN, rounds).outcome is Outcome.TIMEOUT
    assert is_decided(HIDDEN, rounds)
    ended = {"is_finished": False, "execution": ExecResult(exit_code=None, signal=11)}
    verdict = judge(HIDDEN, [one(a="missing", b="missing", run=ended)])
    assert verdict.reason == "the test process ended early (signal 11)"


def test_a_task_without_fail_to_pass_tests_is_never_resolved():
    empty = HiddenTests(
        instance_id="x", gold_patch="", fail_to_pass=(), pass_to_pass=(P,), files={}
    )
    assert judge(empty, [one(p="passed")]).outcome is Outcome.FAILED
