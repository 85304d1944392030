"""Pages in a real browser: solutions pass, attacks do not, verdicts repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import katgym
from katgym.certificate.certify import CONTRACT
from katgym_plugin_web.attacks import attacks
from katgym_plugin_web.env import WrittenPages
from katgym_plugin_web.families import FAMILIES
from katgym_plugin_web.judging import Expected, Script, differences, find_faults, is_drawn
from katgym_plugin_web.pixels import Scene, parse_colour
from katgym_plugin_web.player import parse_state
from katgym_plugin_web.playing import Record


def write(html: str, *, family: str = "clock", seed: int = 0) -> WrittenPages:
    """Play an episode in which a page is written; "SOLUTION" in it is the solution."""
    env: Any = katgym.make("web/Pages-v0", family=family).unwrapped
    env.reset(seed=seed)
    task = env.task.data
    solution = FAMILIES[family].solution(dict(task["parameters"]))
    found = dict(attacks(solution))
    env.step(
        katgym.assistant(
            "", [("write_page", {"html": {"SOLUTION": solution, **found}.get(html, html)})]
        )
    )
    env.step("done")
    return env  # type: ignore[no-any-return]


def value(env: WrittenPages) -> float:
    assert env.last_reward is not None and env.last_reward.value is not None, env.last_reward
    return env.last_reward.value


@pytest.mark.parametrize("family", FAMILIES)
def test_the_solution_passes(family: str) -> None:
    env: Any = katgym.make("web/Pages-v0", family=family).unwrapped
    env.reset(seed=1)
    env.step(env.oracle_action())
    env.step(env.oracle_action())
    assert value(env) == 1.0, env.artifacts["faults"]


def test_a_page_that_was_left_is_graded_again_by_its_own_play() -> None:
    env = write("SOLUTION")
    assert value(env) == 1.0, env.artifacts["faults"]
    forged = {**env.artifacts, "page": "<!doctype html>", "faults": []}
    for artifacts, reward in ((env.artifacts, 1.0), (forged, 0.0)):
        assert asyncio.run(env.clone().regrade(env.task, [], artifacts)) == reward


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_and_plays_follow_from_their_seeds(family: str) -> None:
    made = FAMILIES[family]
    one, two = (made.draw(np.random.default_rng(3)) for _ in range(2))
    assert one == two != made.draw(np.random.default_rng(4))
    assert made.prompt(one) == made.prompt(two)
    plays = [made.script(one, np.random.default_rng(seed)).steps for seed in (5, 5, 6)]
    assert plays[0] == plays[1] != plays[2]


@pytest.mark.parametrize(
    "attack, fault",
    [
        ("a frozen Date", "state().time is"),
        ("an invisible picture", "background: 0.0% of its pixels are right"),
        ("a state that stands still", "state().time is"),
        ("clicks that are swallowed", "there is no button 'Go'"),
        ("memory", "the page "),
        ("a dialog", "an error"),
        ("a request", "an error"),
        ("leaving", "http://elsewhere.test/"),
        ("nothing", "there is no button 'Stop'"),
    ],
)
def test_an_attack_fails_with_its_reason(attack: str, fault: str) -> None:
    env = write(attack)
    assert value(env) == 0.0
    assert fault in str(env.artifacts["faults"]), env.artifacts["faults"]


@pytest.mark.slow
def test_a_loop_is_ended_and_earns_nothing() -> None:
    env = write("a loop later")
    assert value(env) == 0.0
    assert env.artifacts["faults"] == ["the page takes too much time"]


def test_no_page_earns_nothing() -> None:
    env: Any = katgym.make("web/Pages-v0").unwrapped
    env.reset(seed=0)
    env.step("done")
    assert value(env) == 0.0 and env.artifacts["faults"] == ["there is no page"]


def test_a_run_tells_what_the_page_shows_and_what_went_wrong() -> None:
    env: Any = katgym.make("web/Pages-v0").unwrapped
    env.reset(seed=0)
    html = (
        "<!doctype html><button onclick='n++'>Add</button><label>Mail <input></label>"
        "<script>let n = 0; state = () => ({n, r: Math.random()}); fetch('/x').catch(() => 0);"
        "setTimeout(() => { throw new Error('broken'); }, 500)</script>"
    )
    calls = [
        ("write_page", {"html": html}),
        ("run_page", {"wait_ms": 600, "role": "button", "name": "Add"}),
        ("run_page", {"role": "textbox", "name": "Mail", "text": "a@b.org"}),
        ("run_page", {"role": "button", "name": "Remove"}),
        ("run_page", {"wait_ms": -1}),
    ]
    observation, *_ = env.step(katgym.assistant("", calls))
    clicked, typed, missing, refused = [m["content"] for m in observation[1:]]
    assert "error: Error: broken" in clicked and '"n": 1' in clicked
    assert "700 ms after loading began" in clicked and "button 'Add' text='Add'" in clicked
    assert "textbox 'Mail' text='a@b.org' value='a@b.org'" in typed and "broken" not in typed
    assert "there is no button 'Remove'" in missing
    assert "wait_ms is from 0 to 10000" in refused


def test_edits_need_one_place() -> None:
    env: Any = katgym.make("web/Pages-v0").unwrapped
    env.reset(seed=0)
    calls = [
        ("write_page", {"html": "<p>a a</p>"}),
        ("edit_page", {"old": "a", "new": "b"}),
        ("edit_page", {"old": "<p>a", "new": "<p>b"}),
        ("read_page", {}),
    ]
    observation, *_ = env.step(katgym.assistant("", calls))
    assert [m["content"] for m in observation[1:]][::2] == ["old occurs 2 times", "<p>b a</p>"]


def test_a_state_is_data_whatever_it_holds() -> None:
    assert parse_state('{"a": 1}') == {"a": 1}
    assert [parse_state(t) for t in ("[" * 19000, "{", "9" * 30_000, None)] == [None] * 4
    seen = parse_state('{"a": ' + "9" * 400 + ', "b": NaN}')
    assert len(differences({"a": 1.0, "b": 1.0}, seen, "state")) == 2
    assert differences({"a": 1.0}, {"a": True}, "state") == ["state.a is True, not about 1"]
    assert differences({"a": 1}, {"a": 1, "more": 2}, "state") == []
    assert differences([1, "x"], [1], "state") == ["state is [1], not a list of 2"]


def paint(scene: Scene) -> Any:
    return np.asarray(scene.colours, np.uint8)[scene._shape]


def test_a_scene_finds_what_is_missing_moved_or_recoloured() -> None:
    def make(x: float = 40, colour: str = "#d62728") -> Scene:
        scene = Scene(100, 80, "#ffffff")
        scene.rect(10, 50, 60, 20, "#1f77b4", "box")
        scene.circle(x, 40, 15, colour, "disc")
        scene.line((5, 5), (95, 10), 6, "#2ca02c", "line")
        return scene

    assert make().faults(paint(make())) == []
    moved = [fault.split(":")[0] for fault in make().faults(paint(make(x=46)))]
    assert moved == ["background", "disc"]
    assert make().faults(paint(make(colour="#d62758"))) == ["disc: 0.0% of its pixels are right"]
    assert make().faults(paint(make())[:50]) == ["the picture is not all there"]
    assert parse_colour("#d62728") == (214, 39, 40)


def test_text_without_contrast_is_not_drawn() -> None:
    image = np.full((40, 40, 3), 250, np.uint8)
    assert not is_drawn(image, [0, 0, 40, 40]) and not is_drawn(image, [90, 90, 5, 5])
    image[5:9, 5:9] = 10
    assert is_drawn(image, [0, 0, 40, 40]) and not is_drawn(image, [20, 20, 20, 20])


def test_a_record_that_broke_off_is_no_pass() -> None:
    script = Script(size=(10, 10))
    script.look(Expected(state={}))
    assert find_faults(script, Record(failure="the page hangs")) == ["the page hangs"]


@pytest.mark.slow
def test_contract() -> None:
    report = katgym.check_env("web/Pages-v0", num_tasks=4, budget_s=1.0, checks=CONTRACT)
    report.raise_for_failures()
