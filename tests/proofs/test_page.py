"""A browser shows a run's page."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless_chromium import HeadlessChromium

from katgym.cli.main import main

pytestmark = pytest.mark.proof


def test_a_browser_shows_a_run_and_its_rollouts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["eval", "katgym/Arithmetic-v1?level=1", "--policy", "oracle", "--tasks", "2"]
    assert main([*command, "--out", str(run)]) == 0
    assert main(["view", str(run), "--html"]) == 0
    page = run / "view" / "index.html"
    with HeadlessChromium(tmp_path / "profile") as browser:
        browser.open(page.as_uri(), width=1280, height=800)
        assert "katgym/Arithmetic-v1" in browser.run("document.body.innerText")
        rollouts = browser.run("[...document.links].map(a => a.href)")
        assert len(rollouts) == 2
        browser.open(rollouts[0], width=1280, height=800)
        browser.settle()
        assert "calculator" in browser.run("document.body.innerText")
        assert browser.errors == []
