"""A certificate names the fault of an env, and nothing else; sound envs pass every check."""

from __future__ import annotations

import broken_envs as envs
import pytest

import katgym
from katgym.certificate.certify import CHECKS, check_env
from katgym.certificate.findings import CheckReport


def failures(env: katgym.Env) -> dict[str, str]:
    report = check_env(env, num_tasks=8, budget_s=20)
    assert [check.name for check in report.checks] == list(CHECKS)
    return {check.name: check.detail for check in report.failures}


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_class", [envs.Sums, envs.Options, envs.Shelves, envs.YesOrNo], ids=lambda c: c.__name__
)
def test_a_sound_env_passes_every_check(env_class: type[katgym.Env]) -> None:
    report = check_env(env_class(), num_tasks=8)
    assert {str(check.status) for check in report.checks} == {"passed"}, report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_class", "name", "detail"),
    [
        (envs.HashSeedSampling, "processes", "with PYTHONHASHSEED="),
        (envs.ProcessNoise, "processes", "tasks differs in a process"),
        (envs.SharedState, "threads", "gives another episode in one of 8 threads"),
        (envs.GlobalGenerator, "determinism", "played in turn with another"),
        (envs.WideOverlap, "overlap", "100 of 460 tasks are in two splits: 'train-0' of 'train'"),
        (envs.OneSharedTask, "overlap", "1 of 480 tasks are in two splits: 'train-17'"),
        (envs.SharedInForm, "overlap", "differ in nothing but form"),
        (envs.AnswerInInfo, "leak_metadata", "stands in info['debug']['target']: a guesser earns"),
        (envs.AnswerInId, "leak_metadata", "stands in part 3 of the task's id"),
        (envs.AnswerInMessageField, "leak_metadata", "stands in messages[0]['name']"),
        (envs.TopicInInfo, "leak_metadata", "the task's id or info tells the answer"),
        (envs.AnswersTakeTurns, "leak_order", "a task's place in its split tells the answer"),
        (envs.SortedByAnswer, "leak_order", "a task's place in its split tells the answer"),
        (envs.GoldFirst, "leak_order", "the gold option stands at the same place: guessed rightly"),
        (envs.GoldLetter, "leak_order", "the gold option stands at the same place"),
        (envs.PaddedYes, "leak_length", "the prompt's length or layout tells the answer"),
        (envs.LongYes, "leak_length", "the prompt's length or layout tells the answer"),
        (envs.GoldLongest, "leak_length", "the length of an option tells the answer"),
        (envs.PaysLength, "gameability", "'long' earns 50.0%"),
        (envs.PaysAllOptions, "gameability", "earns 100.0%, the floors"),
        (envs.PaysEcho, "gameability", "echo"),
        (envs.PaysHedges, "gameability", "hedge"),
        (envs.PaysToolCalls, "gameability", "'tool spam"),
        (envs.PaysFlattery, "gameability", "flattery"),
        (envs.RaisesOnHuge, "robustness", "no valid reward for a million digits: correct: Memory"),
        (envs.RaisesOnNumbers, "robustness", "no valid reward for a million digits"),
        (envs.BacktracksOnLetters, "robustness", "no reward for repeated letters after"),
        (envs.Hangs, "robustness", "no reward for open parentheses after"),
        (envs.RecursesDeeply, "robustness", "no valid reward for deep brackets: correct: Recurs"),
        (envs.ExecutesAnswers, "robustness", "the process that graded Python ended"),
        (envs.WinsWithNan, "robustness", "not a number earns 1, as much as the solution"),
        (envs.OracleBelowMaximum, "oracle", "the oracle earns 0.9, the rubric's maximum is 1"),
        (envs.WrongLevel, "oracle", "level 2, seed 0, task"),
        (envs.OneAnswer, "triviality", "the task need not be understood: constant play earns 9"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_fails_its_check_and_no_other(
    env_class: type[katgym.Env], name: str, detail: str
) -> None:
    found = failures(env_class())
    if env_class is envs.GlobalGenerator:  # whether threads race for it too is up to the machine
        found.pop("threads", None)
    assert list(found) == [name], found
    assert detail in found[name]


@pytest.mark.slow
def test_floors_are_measured_on_every_level() -> None:
    report: CheckReport = check_env("katgym/Arithmetic-v1", num_tasks=4, checks=["triviality"])
    assert [floor.level for floor in report.floors] == ["", *map(str, range(1, 11))]
    hard = report.floors[10]
    assert (hard.constant, hard.echo, hard.oracle) == (0.0, 0.0, 1.0)
    assert hard.first_option in (None, 0.0)  # a few of its expressions look like a list


def test_levels_that_were_chosen_are_not_measured_again() -> None:
    report = check_env("katgym/Arithmetic-v1", num_tasks=2, checks=["triviality"], level=3)
    assert [floor.level for floor in report.floors] == [""]
