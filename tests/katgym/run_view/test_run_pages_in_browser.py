"""The pages in a real browser: no errors, nothing wider than the screen, and what clicks do."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headless_chromium
import pytest
from headless_chromium import HeadlessChromium
from made_hunts import Words, made_group, made_rollout
from made_long import equal_rollouts, made_long_rollout
from made_runs import write_evaluation, write_training
from nightly import some_of
from waiting import wait_until

from katgym.rollout_store import RolloutStore, record_rollout
from katgym.run_view import (
    FolderSite,
    Selection,
    ViewServer,
    read_run,
    write_folder_pages,
    write_pages,
)

pytestmark = pytest.mark.skipif(
    headless_chromium.PROGRAM is None, reason="the program chromium is not installed"
)
WIDE, NARROW = 1280, 400
EVIL = "</script><script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
COLORS = "[...document.querySelectorAll('.tok')].map(span => span.style.background)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadlessChromium]:
    with HeadlessChromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(autouse=True)
def no_errors(browser: HeadlessChromium) -> Iterator[None]:
    browser.errors.clear()
    yield
    browser.settle()
    assert browser.errors == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of two evaluations of the same tasks, a training run with ids alone, and long rollouts.

    The evaluations have timed calls, branches and text of tokens where possible.
    """
    words, folder = Words(), tmp_path_factory.mktemp("runs")
    for name, skill in (("hunt", 0.5), ("better", 1.0)):
        made = [r for task in range(3) for r in made_group(words.encode, task, skill=skill)]
        write_evaluation(folder / name, made, num_tasks=3)
    write_training(folder / "grpo", Words().encode, num_steps=60, num_groups=4, every=20)
    long = made_long_rollout(words.encode, num_turns=200)
    write_evaluation(folder / "long", equal_rollouts(long, 2), num_tasks=1)
    words.write(folder / "tiny")
    pages = FolderSite(folder, tokenizer=folder / "tiny")
    return write_folder_pages(pages, folder / "view", Selection()).parent


def of_run(site: Path, name: str) -> Path:
    return next((site / "runs").glob(f"{name}-??????"))


@pytest.fixture(scope="module")
def evaluation(site: Path) -> Path:
    return of_run(site, "hunt")


@pytest.fixture(scope="module")
def training(site: Path) -> Path:
    return of_run(site, "grpo")


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go; KATGYM_SCREENSHOTS names a folder that keeps them."""
    kept = os.environ.get("KATGYM_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def group_page(pages: Path, task: str, more: str = "") -> str:
    """Return the address of the first group of a task."""
    names = sorted((pages / "groups").glob(f"*{task}*.js"), key=lambda path: len(path.name))
    return f"{(pages / 'group.html').as_uri()}#g={names[0].stem}{more}"


def look(browser: HeadlessChromium, url: str, *, width: int = WIDE, **more: Any) -> None:
    """Open a page and wait until its script has drawn it."""
    browser.open(url, width=width, height=900, **more)
    wait_for(browser, "document.body.dataset.isReady")
    browser.settle()


def wait_for(browser: HeadlessChromium, script: str) -> None:
    """Wait until an expression is true in the page."""
    wait_until(lambda: browser.run(f"Boolean({script})"), script)


def press(browser: HeadlessChromium, key: str) -> None:
    text = {"text": key} if len(key) == 1 else {}
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
    browser.settle()


def text_of(browser: HeadlessChromium, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def overflow(browser: HeadlessChromium) -> int:
    """Return by how many pixels the page is wider than the window."""
    return int(browser.run("document.documentElement.scrollWidth - innerWidth"))


def size_of(png: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    return width, height


NARROW_CELLS = """(() => {
    const probe = document.createElement('span');
    probe.textContent = '00000000';
    document.querySelector('.list').after(probe);
    const least = probe.offsetWidth;
    probe.remove();
    return [...document.querySelectorAll('tbody th, tbody td')]
        .filter(cell => cell.checkVisibility() && cell.offsetWidth < least)
        .map(cell => [cell.innerText, cell.offsetWidth, least]);
})()"""
"""The cells of tables that are narrower than eight characters."""


def test_pages_fit_the_screen(
    browser: HeadlessChromium, site: Path, evaluation: Path, training: Path, shots: Path
):
    runs = "&".join(f"{n}={of_run(site, r).name}" for n, r in (("a", "hunt"), ("b", "better")))
    pages = {
        "runs": (site / "index.html").as_uri(),
        "evaluation": (evaluation / "index.html").as_uri(),
        "compare": f"{(site / 'compare.html').as_uri()}#{runs}",
        "training": (training / "index.html").as_uri(),
    }
    screens = [(WIDE, False), (NARROW, False), (WIDE, True), (NARROW, True)]
    for width, is_dark in some_of(screens, 2):
        for name, url in pages.items():
            look(browser, url, width=width, is_dark=is_dark)
            assert overflow(browser) == 0
            if width == NARROW and name != "compare":
                assert browser.run(NARROW_CELLS) == []
            path = shots / f"{name}-{width}{'-dark' if is_dark else ''}.png"
            assert size_of(browser.screenshot(path)) == (width, 900)
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(17, 20, 24)" if is_dark else "rgb(255, 255, 255)")
        assert browser.run("document.querySelectorAll('.charts:not(.small) .plot').length") == 13


def test_rollouts_fit_the_screen(
    browser: HeadlessChromium, evaluation: Path, training: Path, shots: Path
):
    modes = ["none", "logprob", "advantage", "surprise"]
    for mode, width in some_of(itertools.product(modes, (WIDE, NARROW)), 2):
        for name, pages, task in (("rollout", evaluation, "000000"), ("ids", training, "000101")):
            look(browser, group_page(pages, task, f"&r=3&c={mode}"), width=width)
            assert overflow(browser) == 0
            browser.screenshot(shots / f"{name}-{mode}-{width}.png")
        assert text_of(browser, "#rollout h2") == "Rollout 3"
        said = "document.querySelector('.message.assistant > div:last-child')"
        assert browser.run(f"{said}.firstChild.textContent").startswith(("I look", "The chests"))
        num_ids = browser.run(f"{said}.querySelectorAll('.tok').length")
        assert (num_ids > 20) == (mode != "none")  # ids stand below the text


def test_a_click_colours_the_tokens_and_those_that_are_shared_have_the_mean_advantage(
    browser: HeadlessChromium, evaluation: Path
):
    look(browser, group_page(evaluation, "000001"))
    assert browser.run("document.querySelectorAll('.tok').length") == 0
    seen = {}
    for mode in ("logprob", "advantage", "surprise"):
        browser.run(f"document.querySelector('[data-mode={mode}]').click()")
        wait_for(browser, "document.querySelectorAll('.tok').length > 50")
        seen[mode] = browser.run(COLORS)
        assert browser.run("document.querySelector('[aria-pressed=true]').dataset.mode") == mode
    assert len(seen["logprob"]) == len(seen["advantage"]) > 50
    assert len({*map(str, seen.values())}) == 3
    assert len(set(seen["logprob"])) > 10
    first, last, sharing, rewards = browser.run(
        "Group.read(told().get('g')).then(async (group) => {"
        " const last = group.rollouts[0].turns.length - 1;"
        " const of = async (turn) => advantages(group, 0, turn, await group.turn(0, turn));"
        " return [(await of(0))[0], (await of(last)).at(-1),"
        " group.tree.vertices[group.path(0, 0)[0][0]].rollouts,"
        " group.rollouts.map(one => one.advantage)]; })"
    )
    assert first == pytest.approx(sum(rewards[i] for i in sharing) / len(sharing), abs=1e-4)
    assert abs(first) < abs(last)


def test_what_is_seen_of_a_rollout_that_was_replaced_draws_nothing(
    browser: HeadlessChromium, evaluation: Path
):
    """A browser tells late what has come into view: here after the click."""
    note = "window.seen = []; const Own = IntersectionObserver; IntersectionObserver = class "
    note += "extends Own { constructor(tell, how) { super(tell, how); window.seen.push(tell); } };"
    noted = browser.call("Page.addScriptToEvaluateOnNewDocument", source=note)
    try:
        look(browser, group_page(evaluation, "000001"))
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **noted)
    num_told = browser.run(
        "(() => { const target = document.querySelector('.block');"
        " document.querySelector('[data-mode=logprob]').click();"
        " window.seen.forEach(tell => tell([{isIntersecting: true, target}]));"
        " return window.seen.length; })()"
    )
    assert num_told > 0
    wait_for(browser, "document.querySelectorAll('.tok').length > 50")


def test_tool_output_is_seen_at_once_beside_its_lane_and_the_tree_chooses_what_is_read(
    browser: HeadlessChromium, evaluation: Path
):
    look(browser, group_page(evaluation, "000001"))
    lefts = browser.run(
        "[...document.querySelector('.lanes').querySelectorAll('.run')]"
        ".map(bar => [parseFloat(bar.style.left), parseFloat(bar.style.width)])"
    )
    whole, rows = browser.run(
        "Group.read(told().get('g')).then(group => group.turn(0, 0))"
        ".then(turn => [turn.lanes.seconds, turn.lanes.rows])"
    )
    assert len(lefts) == len(rows) >= 4
    for (left, width), call in zip(lefts, rows, strict=True):
        assert left == pytest.approx(100 * call["start"] / whole, abs=0.02)
        assert width == pytest.approx(
            max(0.4, 100 * (call["end"] - call["start"]) / whole), abs=0.02
        )
    assert browser.run("document.querySelector('.lane .output').checkVisibility()") is True
    assert "owl seal" in text_of(browser, ".lane .output")
    press(browser, "o")
    assert browser.run("document.querySelector('.lane .output').checkVisibility()") is False

    stops = '[...document.querySelectorAll(\'.tree [tabindex="0"], .tree[tabindex="0"]\')]'
    assert browser.run(f"{stops}.length") == 1
    browser.run("document.querySelector('.tree').focus()")
    told = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        press(browser, key)
        told.append(text_of(browser, "#tip").splitlines()[0])
    assert told[0] == "where all begin" and set(told[1:4]) == {"paths part here"}
    assert told[4:] == ["end of turn 1"] * 2
    assert re.search(r"mean reward\s+[01]", text_of(browser, "#tip"))
    press(browser, "Enter")
    wait_for(browser, "document.querySelector('.turn.here')?.dataset.turn === '0'")

    heading = "document.querySelector('#rollout h2').innerText"
    browser.run("document.querySelector('[data-rollout=\"2\"]').click()")
    wait_for(browser, f"{heading} === 'Rollout 3'")
    assert browser.run("location.hash").endswith("&r=3")
    num = browser.run("document.querySelectorAll('#rollout .turn').length")
    assert browser.run("document.querySelectorAll('.tree .node:not(.off)').length") == num
    assert browser.run("document.querySelectorAll('.tree .reason').length") == 1
    browser.run(
        "[...document.querySelectorAll('.tree .node:not(.off)')].at(-1)"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    wait_for(browser, f"document.querySelector('.turn.here')?.dataset.turn === '{num - 1}'")
    press(browser, "h")
    wait_for(browser, f"{heading} === 'Rollout 2'")


def test_lists_are_searched_and_sorted_and_charts_tell_their_numbers(
    browser: HeadlessChromium, training: Path
):
    look(browser, (training / "index.html").as_uri())
    rows = "[...document.querySelectorAll('.list tbody tr')]"

    def search(query: str) -> list[str]:
        browser.run(
            f"document.querySelector('[name=q]').value = {json.dumps(query)};"
            "document.querySelector('form').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        return text_of(browser, "#lists .status").split(" of ")

    assert search("") == ["72 rollouts"]
    assert search("step:21") == ["24", "72 rollouts"]
    (few, _), (none, _) = search("errors>1"), search("turns>99")
    assert 0 < int(few) < 72 and none == "0"
    assert search("reward=1 errors=0 hunt")[1:] == ["72 rollouts"]
    browser.run("document.querySelector('[data-view=groups]').click()")
    assert search("step:21") == ["4", "12 groups"]
    search("")
    browser.run("document.querySelector('[name=m]').click()")
    mixed = browser.run(f"{rows}.map(row => Number(row.cells[4].textContent))")
    assert mixed and all(0 < value < 1 for value in mixed)
    browser.run("document.querySelector('[name=m]').click()")
    browser.run("document.querySelectorAll('.list thead button')[4].click()")
    means = browser.run(f"{rows}.map(row => Number(row.cells[4].textContent))")
    assert len(means) == 12 and means == sorted(means, reverse=True)
    assert "v=groups" in browser.run("location.hash")

    browser.run("scrollTo(0, 0)")
    frame = browser.run(
        "(() => { const f = document.querySelector('.plot').getBoundingClientRect();"
        " return [f.x, f.y, f.width, f.height]; })()"
    )
    browser.call(
        "Input.dispatchMouseEvent", type="mouseMoved", x=frame[0] + frame[2] / 2,
        y=frame[1] + frame[3] / 2,
    )  # fmt: skip
    wait_for(browser, "!document.querySelector('#tip').hidden")
    step = int(re.match(r"step (\d+)\nreward", text_of(browser, "#tip"))[1])  # type: ignore[index]
    assert 20 < step < 40  # the axis' numbers move its middle a little
    assert browser.run("document.querySelectorAll('.cursor[visibility=visible]').length") >= 9
    browser.run("document.querySelector('.plot').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        press(browser, key)
    assert text_of(browser, "#tip").startswith("step 2\nreward")


def test_a_token_tells_its_numbers_to_keyboard_and_touch(
    browser: HeadlessChromium, evaluation: Path
):
    """The weights change after two tokens of the second answer."""
    look(browser, group_page(evaluation, "000001", "&c=logprob"))
    headers = browser.run("[...document.querySelectorAll('.measures')].map(h => h.textContent)")
    told = [re.search(r"version ([\d, ]+?) ·", header)[1] for header in headers]  # type: ignore[index]
    assert told[:3] == ["0", "0, 1", "1"]

    def version() -> str:
        return re.search(r"policy version\s+(\d)", text_of(browser, "#tip"))[1]  # type: ignore[index]

    browser.run("document.querySelector('[data-turn=\"1\"] .strip').focus()")
    seen = []
    for _ in range(4):
        press(browser, "ArrowRight")
        seen.append(version())
        assert {"id", "log-prob", "advantage"} <= {
            line.split("\t")[0].strip() for line in text_of(browser, "#tip").splitlines()
        }
    assert seen == ["0", "0", "1", "1"]
    browser.run("document.querySelector('[data-turn=\"1\"] .tok').click()")
    assert version() == "0"


def test_hostile_text_does_nothing(browser: HeadlessChromium, tmp_path: Path):
    made = made_rollout(Words().encode, task=1, attempt=0, note=EVIL)
    view = read_run(write_evaluation(tmp_path / "run", [made]))
    pages = write_pages(view, tmp_path / "view").parent
    look(browser, group_page(pages, "000001"))
    assert EVIL in text_of(browser, ".lane .output")
    assert browser.run("window.harmed") is None
    assert browser.run("document.querySelectorAll('img').length") == 0


def test_two_hundred_turns_are_drawn_as_they_are_read(
    browser: HeadlessChromium, site: Path, shots: Path
):
    pages = of_run(site, "long")
    loaded = [*(site / "assets").iterdir(), pages / "group.html", pages / "list.js"]
    loaded += [path for path in (pages / "groups").iterdir() if "-0.js" in path.name]
    loaded.append(max((pages / "groups").iterdir(), key=lambda path: path.stat().st_size))
    assert sum(path.stat().st_size for path in loaded) < 1_000_000
    look(browser, group_page(pages, "000007"))
    assert browser.run("document.querySelectorAll('*').length") < 500
    assert text_of(browser, "[data-first-error]") == "first error: turn 37"
    here = "document.querySelector('.turn.here')"
    for key, turn in (("e", 37), ("e", 74), ("j", 75), ("k", 74), ("E", 37)):
        press(browser, key)
        wait_for(browser, f"{here}?.dataset.turn === '{turn - 1}' && {here}.open")
        top = f"{here}.getBoundingClientRect().top"  # scrolled there once it is drawn
        wait_for(browser, f"-5 < {top} && {top} < 850")
        assert browser.run("document.activeElement.closest('.turn').dataset.turn") == str(turn - 1)
    browser.screenshot(shots / "long-1280.png")
    press(browser, "/")
    browser.run(
        "document.activeElement.value = '151 passed';"
        "document.activeElement.dispatchEvent(new Event('change')); document.activeElement.blur()"
    )
    wait_for(browser, f"{here}?.dataset.turn === '150'")


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a run of a thousand rollouts, of which a few groups have pages."""
    folder, words = tmp_path_factory.mktemp("thousand"), Words()
    group = made_group(words.encode, 1, group_size=4)
    rollouts = [
        dataclasses.replace(
            one, task_id=f"task-{task:04d}", episode_id=f"{task}-{one.attempt}", turns=()
        )
        for task in range(250)
        for one in group
    ]
    run = write_evaluation(folder / "run", rollouts, num_tasks=250)
    return write_pages(read_run(run, Selection(limit=2)), folder / "view").parent


@pytest.mark.slow
def test_a_thousand_rollouts_are_listed_lightly_and_none_is_dropped(
    browser: HeadlessChromium, thousand: Path
):
    loaded = [thousand / "index.html", thousand / "list.js", *(thousand / "assets").iterdir()]
    assert sum(path.stat().st_size for path in loaded) < 1_000_000
    look(browser, (thousand / "index.html").as_uri())
    assert browser.run("document.querySelectorAll('*').length") < 500
    assert text_of(browser, "#lists .status") == "1,000 rollouts"
    assert "248 of 250 groups have no page here" in text_of(browser, ".notes")
    for _ in range(3):
        press(browser, "j")
    here = "document.querySelector('.list tr.here')"
    assert browser.run(f"{here}.rowIndex") == 3
    browser.run(
        "for (let more; !(more = document.querySelector('#lists .more')).hidden;) more.click()"
    )
    assert browser.run("document.querySelectorAll('.list tbody tr').length") == 1000


def test_keys_go_through_runs_and_the_leaderboard_leads_to_rollouts(
    browser: HeadlessChromium, site: Path
):
    look(browser, (site / "index.html").as_uri())
    press(browser, "?")
    told = text_of(browser, "dialog")
    assert "next run; Enter opens it" in told and "compare the two that are chosen" in told
    browser.run("document.querySelector('dialog').close()")
    for key in ("j", "x", "j", "j", "x"):
        press(browser, key)
    assert text_of(browser, "a.button") == "compare the two runs"
    address = browser.run("document.querySelector('a.button').href")
    assert address.endswith(f"a={of_run(site, 'better').name}&b={of_run(site, 'hunt').name}")
    browser.open((site / "leaderboard.html").as_uri(), width=WIDE, height=900)
    address = browser.run("document.querySelector('td.alert a').href")
    look(browser, address)
    assert text_of(browser, "#lists .status") == "1 of 18 rollouts"


def test_two_runs_stand_side_by_side_by_task(browser: HeadlessChromium, site: Path):
    runs = f"a={of_run(site, 'hunt').name}&b={of_run(site, 'better').name}"
    look(browser, f"{(site / 'compare.html').as_uri()}#{runs}")
    rows = browser.run(
        "[...document.querySelectorAll('.list tbody tr')].map(row =>"
        " [...row.cells].map(cell => cell.innerText.split('\\n')[0]))"
    )
    assert [row[0] for row in rows] == [f"L3-train-00000{i}" for i in range(3)]
    assert rows[1][1:] == ["0.5", "1", "▲ +0.5"]
    browser.run("document.querySelectorAll('.list tbody a')[1].click()")
    for side in "ab":
        wait_for(browser, f"document.querySelectorAll('#side-{side} .lane .output').length > 2")
    press(browser, "j")
    press(browser, "j")
    here = browser.run("[...document.querySelectorAll('.turn.here')].map(t => t.id)")
    assert here == ["side-a-turn-2", "side-b-turn-2"]
    assert "&t=" in browser.run("location.hash")


def test_curves_of_several_training_runs_lie_over_each_other(
    browser: HeadlessChromium, tmp_path: Path
):
    for name, num_steps in (("one", 12), ("two", 20)):
        write_training(tmp_path / name, Words().encode, num_steps=num_steps, num_groups=0)
    pages = write_folder_pages(FolderSite(tmp_path), tmp_path / "view", Selection()).parent
    look(browser, (pages / "curves.html").as_uri())
    names = "[...document.querySelector('.plot').querySelectorAll('[data-series]')]"
    assert browser.run(f"{names}.map(one => one.dataset.series)") == ["one", "two"]
    dashes = f"{names}.map(one => getComputedStyle(one.querySelector('.line')).strokeDasharray)"
    assert len(set(browser.run(dashes))) == 2
    browser.run("document.querySelector('[data-curve=one]').click()")
    shown = f"{names}.map(one => getComputedStyle(one).visibility)"
    assert browser.run(shown) == ["hidden", "visible"]


def test_a_served_list_grows_with_its_runs(browser: HeadlessChromium, tmp_path: Path):
    group = made_group(Words().encode, 1)
    folder = write_evaluation(tmp_path / "run", group[:2], num_tasks=1, is_finished=False)
    with ViewServer(FolderSite(tmp_path)) as server:
        look(browser, f"{server.url}runs/{next(iter(server.site.runs))}/index.html")
        assert text_of(browser, "#lists .status") == "2 rollouts"
        with RolloutStore.open(folder) as store:
            group_id = store.sessions()[0].group_id
            record_rollout(store, group[3], group_id=group_id)
        wait_for(browser, "document.querySelector('#lists .status').textContent === '3 rollouts'")
        notes = "document.querySelector('.notes').textContent"
        wait_for(browser, f"{notes}.includes('3 of 6 rollouts are there')")
        browser.run("document.querySelector('.list a').click()")
        wait_for(browser, "document.querySelector('.lane .output')")
        assert text_of(browser, "h1") == group[0].task_id
        with RolloutStore.open(folder) as store:
            record_rollout(store, group[4], group_id=group_id)
        wait_for(browser, "document.getElementById('grown')")
        press(browser, "r")
        wait_for(browser, "document.querySelectorAll('[data-rollout]').length === 4")
