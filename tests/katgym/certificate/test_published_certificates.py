"""Certificates as files: JSON that is read back, a badge that a browser shows, `katgym envs`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from xml.etree import ElementTree

import pytest
from headless_chromium import PROGRAM, HeadlessChromium

import katgym
from katgym.certificate.badge import describe, draw_badge
from katgym.certificate.findings import Check, CheckReport, CheckStatus, Floor
from katgym.certificate.published import read_file, read_published, to_json
from katgym.cli.main import main

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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
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
