"""A certificate names the fault of an env and nothing else; as a file, a badge and by training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from xml.etree import ElementTree

import broken_envs as envs
import pytest
from headless_chromium import PROGRAM, HeadlessChromium

import katgym
from katgym.certificate.badge import describe, draw_badge
from katgym.certificate.certify import CHECKS, check_env
from katgym.certificate.findings import Check, CheckReport, CheckStatus, Floor
from katgym.certificate.learnability import check_learnability
from katgym.certificate.published import read_file, read_published, to_json
from katgym.cli.main import main


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
    report = check_env(
        "katgym/Arithmetic-v1", num_tasks=2, budget_s=1, checks=["triviality"], level=3
    )
    assert [floor.level for floor in report.floors] == [""]


# ---- as files: JSON that is read back, a badge that a browser shows, `katgym envs`


REPORT = CheckReport(
    env_id="acme/Coin-v0",
    checks=(
        Check(name="oracle", status=CheckStatus.PASSED, detail="at least 1"),
        Check(name="leak_order", status=CheckStatus.FAILED, detail="a < b", figures={"p": 1e-9}),
        Check(name="tools", status=CheckStatus.SKIPPED, detail="no <tools>"),
    ),
    floors=(
        Floor(level="", num_tasks=100, constant=0.31, constant_action="heads"),
        Floor(level="2", num_tasks=50, constant=0.3),
    ),
    versions={"katgym": "0.1.0"},
)


def test_a_file_of_certificates_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "certificates.json"
    path.write_text(to_json([REPORT]), encoding="utf-8")
    (read,) = read_file(path)
    assert read.env_id == "acme/Coin-v0"
    assert [check.name for check in read.failures] == ["leak_order"]
    assert read.failures[0].figures == {"p": 1e-9}
    assert read.marks == ["constant 31%"]  # 30 % at level 2 is not above it


def test_a_badge_is_svg_that_says_what_fails() -> None:
    assert describe([REPORT]) == "1/2 passed, not leak_order"
    root = ElementTree.fromstring(draw_badge([REPORT]))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["katgym check", "1/2 passed, not leak_order"]
    assert root.attrib["width"] == str(round(12 * 6.6) + round(26 * 6.6) + 24)


@pytest.mark.slow
def test_check_writes_json_and_badge_of_a_pattern(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, badge = tmp_path / "c.json", tmp_path / "c.svg"
    more = ["--tasks", "3", "--badge", str(badge), "--json"]
    assert main(["check", "katgym/Arithmetic-*", *more]) == 0
    file.write_text(capsys.readouterr().out)
    (report,) = read_file(file)
    assert (report.env_id, report.ok) == ("katgym/Arithmetic-v1", True)
    assert {"katgym", "python", "katgym.math"} <= set(report.versions)
    assert ElementTree.fromstring(badge.read_text()).tag.endswith("svg")


def test_a_pattern_without_envs_and_a_wrong_budget_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "nobody/*"]) == 2
    assert "no env fits 'nobody/*'" in capsys.readouterr().err
    with pytest.raises(katgym.UsageError, match=r"budget_s is > 0, got 0"):
        katgym.check_env("katgym/Arithmetic-v1", budget_s=0)
    with pytest.raises(katgym.UsageError, match=r"unknown check 'oracles'\. Did you mean 'oracle'"):
        katgym.check_env("katgym/Arithmetic-v1", checks=["oracles"])


def test_envs_shows_what_a_plugin_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in (("kpcert_good", to_json([REPORT])), ("kpcert_bad", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "certificates.json").write_text(text)
    (tmp_path / "kpcert_none.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert read_published("kpcert_good.plugin")["acme/Coin-v0"].floors[0].constant == 0.31
    assert read_published("kpcert_none") == {}
    with caplog.at_level(logging.WARNING):
        assert read_published("kpcert_bad.plugin") == {}
    assert "certificates of plugin module 'kpcert_bad.plugin' are left out" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="the program chromium is missing")
def test_a_browser_shows_the_whole_badge(tmp_path: Path) -> None:
    badge = draw_badge([REPORT])
    (tmp_path / "badge.svg").write_text(badge, encoding="utf-8")
    with HeadlessChromium(tmp_path / "profile") as browser:
        browser.open((tmp_path / "badge.svg").as_uri(), width=400, height=60)
        ends = browser.run(
            "[...document.querySelectorAll('text')].map(t => t.getBBox().x + t.getBBox().width)"
        )
        assert browser.errors == []
    assert len(ends) == 2
    assert max(ends) <= int(badge.split('width="')[1].split('"')[0])


def test_envs_shows_the_floors_of_a_built_in_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "katgym/Arithmetic-v1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    levels = {floor["level"]: floor for floor in found["floors"]}
    assert levels["6"]["constant"] <= 0.03
    assert found["floors_versions"]["katgym"]
    assert main(["envs", "katgym/Arithmetic-v1"]) == 0
    assert "floors on test tasks" in capsys.readouterr().out


# ---- a tiny model is trained by the commands a user would type


FLOOR_OF_HALF = CheckReport(
    env_id="katgym/Arithmetic-v1", checks=(), floors=(Floor(level="", num_tasks=100, constant=0.5),)
)


@pytest.mark.slow
def test_what_cannot_be_trained_fails_with_the_reason() -> None:
    check = check_learnability("nobody/Nothing-v0", {}, FLOOR_OF_HALF)
    assert (check.name, check.status) == ("learnability", CheckStatus.FAILED)
    assert "katgym train new-model says: error: unknown env 'nobody/Nothing-v0'" in check.detail


@pytest.mark.slow
def test_two_steps_teach_nothing_and_prove_nothing() -> None:
    check = check_learnability("katgym/Arithmetic-v1", {"level": 1}, FLOOR_OF_HALF, num_steps=2)
    assert check.status is CheckStatus.SKIPPED
    assert check.detail.startswith("not shown in so few steps: a mean reward of 0.0% before")
    assert (check.figures["floor"], check.figures["num_tasks"]) == (0.5, 64)


@pytest.mark.slow
def test_a_hundred_steps_of_imitation_learn_sums() -> None:
    floor = Floor(level="", num_tasks=100, constant=0.02)
    report = CheckReport(env_id="katgym/Arithmetic-v1", checks=(), floors=(floor,))
    check = check_learnability("katgym/Arithmetic-v1", {"level": 1}, report)
    assert check.status is CheckStatus.PASSED, check
    assert check.figures["after"] > 0.2
