"""MiniWoB's pages in a real Chromium: solutions, wrong and late clicks, seeds, the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import katgym
from katgym.certificate.certify import CONTRACT
from katgym_plugin_miniwob.browser import shared_browser
from katgym_plugin_miniwob.env import describe, html_folder
from katgym_plugin_miniwob.solutions import SOLUTIONS


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    shared_browser()
    yield
    shared_browser().close()
    shared_browser.cache_clear()


def start(page: str, seed: int = 0) -> Any:
    env = katgym.make("miniwob/Pages-v0", page=page).unwrapped
    env.reset(seed=seed)
    return env


def find(env: Any, text: str) -> int:
    return int(next(e["ref"] for e in env.elements if text in (e["text"], e.get("value"))))


def act(env: Any, *calls: tuple[str, dict[str, Any]]) -> tuple[list[str], float, bool]:
    observation, reward, terminated, *_ = env.step(katgym.assistant("", calls))
    return [message["content"] for message in observation], float(reward), terminated


@pytest.mark.slow
def test_contract() -> None:
    report = katgym.check_env("miniwob/Pages-v0", num_tasks=4, budget_s=1.0, checks=CONTRACT)
    report.raise_for_failures()


def test_contract_of_a_page() -> None:
    checks = [name for name in CONTRACT if name not in ("overlap", "gymnasium", "threads")]
    report = katgym.check_env(
        "miniwob/Pages-v0", num_tasks=1, budget_s=1.0, checks=checks, page="login-user"
    )
    report.raise_for_failures()


@pytest.mark.parametrize("page", SOLUTIONS)
def test_the_solution_earns_the_full_reward(page: str) -> None:
    env = start(page)
    _, reward, terminated, *_ = env.step(env.oracle_action())
    assert terminated and reward == 1.0


@pytest.mark.slow
def test_solutions_hold_for_other_seeds() -> None:
    for page in SOLUTIONS:
        for seed in range(1, 12):
            env = start(page, seed)
            _, reward, terminated, *_ = env.step(env.oracle_action())
            assert terminated and reward == 1.0, (page, seed)


def test_a_page_is_shown_as_text_and_changes_with_what_is_done() -> None:
    env = start("login-user")
    query, _, elements = env.messages[-1]["content"].partition("\n\n")
    assert query.startswith('Enter the username "')
    shown = [line.split(" ", 1)[1] for line in elements.splitlines()]
    assert [line for line in shown if line.startswith(("input", "button"))] == [
        "input text",
        "input password",
        "button 'Login'",
    ]
    field = next(e["ref"] for e in env.elements if e.get("type") == "text")
    results, *_ = act(env, ("type_text", {"element": field, "text": "Bob"}))
    assert f"[{field}] input text value='Bob' focused" in results[0]


def test_the_wrong_button_is_judged_and_earns_nothing() -> None:
    env = start("click-test-2")
    results, reward, terminated = act(env, ("click", {"element": find(env, "TWO")}))
    assert results == ["The page has judged what was done."]
    assert terminated and reward == 0.0 and env.raw_reward == -1.0


def test_part_of_the_task_earns_nothing() -> None:
    env = start("click-checkboxes", seed=1)
    _, reward, terminated = act(env, ("click", {"element": find(env, "Submit")}))
    assert terminated and env.raw_reward < 1.0 and reward == 0.0


def test_a_page_that_has_judged_is_not_played_again() -> None:
    env = start("click-test-2")
    wrong, right = find(env, "TWO"), find(env, "ONE")
    clicks = [("click", {"element": wrong})] + [("click", {"element": right})] * 3
    results, reward, _ = act(env, *clicks)
    assert results[1:] == ["the page has judged what was done"] * 3 and reward == 0.0


@pytest.mark.parametrize(
    "call",
    [
        ("click", {"element": 999}),
        ("click", {"element": -1}),
        ("type_text", {"element": 999, "text": "x"}),
        ("type_text", {"element": 1, "text": "x" * 1001}),
        ("select", {"element": 1, "option": '"); core.endEpisode(1); ("'}),
    ],
)
def test_what_cannot_be_done_is_an_error_and_the_page_goes_on(call: Any) -> None:
    env = start("enter-text")
    _, reward, terminated = act(env, call)
    assert env.last_tool_results[0].error is not None and not terminated and reward == 0.0
    _, reward, terminated, *_ = env.step(env.oracle_action())
    assert terminated and reward == 1.0


def test_script_in_a_text_is_text() -> None:
    env = start("enter-text")
    text = '<img src=x onerror="core.endEpisode(1)">`${core.endEpisode(1)}`'
    _, reward, terminated = act(
        env, ("type_text", {"element": env.elements[0]["ref"], "text": text})
    )
    assert not terminated and reward == 0.0


def test_equal_seeds_give_equal_pages_also_in_a_tab_that_was_used() -> None:
    first = start("click-checkboxes", seed=3)
    seen = first.messages[-1]["content"]
    second = start("click-checkboxes", seed=3)  # a tab of its own
    assert second.messages[-1]["content"] == seen
    act(first, ("click", {"element": find(first, "Submit")}))
    first.reset(seed=4)
    assert first.messages[-1]["content"] != seen
    first.reset(seed=3)
    assert first.messages[-1]["content"] == seen


def test_pages_are_named_and_those_without_a_solution_can_be_played() -> None:
    env = start("book-flight")
    assert env.query and env.elements
    with pytest.raises(NotImplementedError, match="'book-flight' has no solution"):
        env.oracle_action()
    with pytest.raises(katgym.UsageError, match="click-button"):
        katgym.make("miniwob/Pages-v0", page="click-buton")


def test_the_browser_ends_with_its_process_and_leaves_no_profile() -> None:
    code = (
        "from katgym_plugin_miniwob.browser import shared_browser as b\n"
        "b().call('Browser.getVersion'); print(b().process.pid, b()._profile)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, profile = done.stdout.split()
    listed = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
    assert listed.stdout.strip() == ""
    assert not Path(profile).exists()


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "miniwob", None)
    with pytest.raises(katgym.MissingDependencyError, match="pip install --no-deps miniwob"):
        html_folder()


def test_an_element_is_described_in_a_line() -> None:
    element = {"ref": 3, "tag": "input", "text": "", "type": "checkbox", "checked": True}
    assert describe(element) == "[3] input checkbox checked"
