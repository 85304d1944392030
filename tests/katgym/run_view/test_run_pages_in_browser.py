"""The pages in a real browser: no errors, nothing wider than the screen, and what clicks do."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import headless_chromium
import pytest
from headless_chromium import HeadlessChromium
from made_hunts import Words, made_group, made_rollout
from made_runs import write_evaluation, write_training

from katgym.run_view import read_run, write_pages

pytestmark = pytest.mark.skipif(
    headless_chromium.PROGRAM is None, reason="the program chromium is not installed"
)
SIZES = ((1280, 900), (400, 800))
EVIL = "</script><script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
GOOD = "rgb(13 138 108"
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
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of an evaluation with timed calls, a branch and text of tokens where possible."""
    words, folder = Words(), tmp_path_factory.mktemp("evaluation")
    rollouts = [r for task in range(3) for r in made_group(words.encode, task)]
    words.write(folder / "tiny")
    view = read_run(write_evaluation(folder / "hunt", rollouts), tokenizer=folder / "tiny")
    return write_pages(view, folder / "view").parent


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a training run whose tokens are ids."""
    folder = tmp_path_factory.mktemp("training")
    run = write_training(folder / "grpo", Words().encode, num_steps=60, num_groups=4, every=20)
    return write_pages(read_run(run), folder / "view").parent


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go; KATGYM_SCREENSHOTS names a folder that keeps them."""
    kept = os.environ.get("KATGYM_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def group_page(pages: Path, task: str) -> str:
    return next((pages / "groups").glob(f"*{task}*.html")).as_uri()


def overflow(browser: HeadlessChromium) -> int:
    """Return by how many pixels the page is wider than the window."""
    return int(browser.run("document.documentElement.scrollWidth - innerWidth"))


def size_of(png: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
@pytest.mark.parametrize("is_dark", [False, True])
def test_first_pages_fit_the_screen(
    browser: HeadlessChromium, evaluation: Path, training: Path, shots: Path,
    size: tuple[int, int], is_dark: bool,
):  # fmt: skip
    for name, pages in (("evaluation", evaluation), ("training", training)):
        url = (pages / "index.html").as_uri()
        browser.open(url, width=size[0], height=size[1], is_dark=is_dark)
        assert overflow(browser) == 0
        path = shots / f"{name}-{size[0]}{'-dark' if is_dark else ''}.png"
        assert size_of(browser.screenshot(path)) == size
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(17, 20, 24)" if is_dark else "rgb(255, 255, 255)")
    assert browser.run("document.querySelectorAll('.charts:not(.small) .plot').length") == 13


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
@pytest.mark.parametrize("mode", ["none", "logprob", "advantage", "surprise"])
def test_rollouts_fit_the_screen(
    browser: HeadlessChromium, evaluation: Path, training: Path, shots: Path,
    size: tuple[int, int], mode: str,
):  # fmt: skip
    for name, url in (
        ("rollout", group_page(evaluation, "000000")),
        ("ids", group_page(training, "000101")),
    ):
        browser.open(f"{url}#r=3&c={mode}", width=size[0], height=size[1])
        assert overflow(browser) == 0
        browser.screenshot(shots / f"{name}-{mode}-{size[0]}.png")
    assert browser.run("document.querySelector('#rollout h2').textContent") == "Rollout 3"
    said = "document.querySelector('.message.assistant > div:last-child')"
    assert browser.run(f"{said}.firstChild.textContent").startswith(("I look", "The chests"))
    num_ids = browser.run(f"{said}.querySelectorAll('.tok.id').length")
    assert (num_ids > 20) == (mode != "none")  # ids stand below the text


def test_a_click_colours_the_tokens(browser: HeadlessChromium, evaluation: Path):
    browser.open(group_page(evaluation, "000001"), width=1280, height=900)
    assert browser.run("document.querySelectorAll('.tok').length") == 0
    seen = {}
    for mode in ("logprob", "advantage", "surprise"):
        browser.run(f"document.querySelector('[data-mode={mode}]').click()")
        browser.settle()
        seen[mode] = browser.run(COLORS)
        assert browser.run("document.querySelector('[aria-pressed=true]').dataset.mode") == mode
    assert len(seen["logprob"]) == len(seen["advantage"]) > 50
    assert len({*map(str, seen.values())}) == 3
    assert len(set(seen["logprob"])) > 10
    browser.run("document.querySelector('[data-mode=none]').click()")
    browser.settle()
    assert browser.run("document.querySelectorAll('.tok').length") == 0


def test_shared_tokens_have_the_mean_advantage_of_those_that_share_them(
    browser: HeadlessChromium, evaluation: Path
):
    browser.open(f"{group_page(evaluation, '000001')}#r=1&c=advantage", width=1280, height=900)
    told = browser.run("group.rollouts[0].turns.map((turn, place) => advantages(group, 0, place))")
    first, last = told[0][0], told[-1][-1]
    sharing = browser.run("group.tree.vertices[group.tree.spans['0.0'][0][0]].rollouts")
    rewards = browser.run("group.rollouts.map(one => one.advantage)")
    assert first == pytest.approx(sum(rewards[i] for i in sharing) / len(sharing), abs=1e-4)
    assert abs(first) < abs(last)


def test_siblings_and_dots_of_the_tree_choose_what_is_read(
    browser: HeadlessChromium, evaluation: Path
):
    browser.open(group_page(evaluation, "000001"), width=1280, height=900)
    browser.run("document.querySelector('[data-rollout=\"2\"]').click()")
    browser.settle()
    assert browser.run("document.querySelector('#rollout h2').textContent") == "Rollout 3"
    assert browser.run("location.hash") == "#r=3"
    assert browser.run("document.querySelectorAll('.tree .node:not(.off)').length") == browser.run(
        "group.rollouts[2].turns.length"
    )
    assert browser.run("document.querySelectorAll('.tree .reason').length") == 1
    browser.run(
        "[...document.querySelectorAll('.tree .node:not(.off)')].at(-1)"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    browser.settle()
    assert browser.run("document.querySelectorAll('.turn.here').length") == 1
    browser.run("history.back()")
    browser.settle()


def test_lanes_lie_on_the_time_axis_and_open(browser: HeadlessChromium, evaluation: Path):
    browser.open(group_page(evaluation, "000001"), width=1280, height=900)
    lefts = browser.run(
        "[...document.querySelector('.lanes').querySelectorAll('.run')]"
        ".map(bar => [parseFloat(bar.style.left), parseFloat(bar.style.width)])"
    )
    calls = browser.run("group.rollouts[0].turns[0].lanes")
    assert len(lefts) == len(calls["rows"]) >= 4
    for (left, width), call in zip(lefts, calls["rows"], strict=True):
        assert left == pytest.approx(100 * call["start"] / calls["seconds"], abs=0.02)
        least = max(0.4, 100 * (call["end"] - call["start"]) / calls["seconds"])
        assert width == pytest.approx(least, abs=0.02)
    assert browser.run("document.querySelector('.lane .output').checkVisibility()") is False
    browser.run("document.querySelector('.lane summary').click()")
    assert browser.run("document.querySelector('.lane .output').checkVisibility()") is True
    assert "owl seal" in browser.run("document.querySelector('.lane .output').textContent")


def test_groups_are_filtered_and_sorted(browser: HeadlessChromium, training: Path):
    browser.open((training / "index.html").as_uri(), width=1280, height=900)
    shown = "[...document.querySelectorAll('#group-table tbody tr')].filter(row => !row.hidden)"
    assert browser.run(f"{shown}.length") == 12
    browser.run(
        "filter = document.getElementById('filter'); filter.text.value = 'step 21';"
        "filter.dispatchEvent(new Event('input'))"
    )
    assert browser.run(f"{shown}.map(row => row.cells[0].textContent)") == ["21"] * 4
    browser.run("filter.text.value = ''; filter.mixed.click()")
    mixed = browser.run(f"{shown}.map(row => Number(row.cells[4].dataset.value))")
    assert mixed and all(0 < value < 1 for value in mixed)
    browser.run("filter.mixed.click()")
    browser.run("document.querySelectorAll('#group-table thead button')[4].click()")
    means = browser.run(f"{shown}.map(row => Number(row.cells[4].dataset.value))")
    assert means == sorted(means, reverse=True)


def test_pointing_at_a_curve_shows_its_numbers_in_all_charts(
    browser: HeadlessChromium, training: Path
):
    browser.open((training / "index.html").as_uri(), width=1280, height=900)
    frame = browser.run(
        "(() => { const f = document.querySelector('.plot').getBoundingClientRect();"
        " return [f.x, f.y, f.width, f.height]; })()"
    )
    browser.call(
        "Input.dispatchMouseEvent", type="mouseMoved", x=frame[0] + frame[2] / 2,
        y=frame[1] + frame[3] / 2,
    )  # fmt: skip
    browser.settle()
    told = browser.run("document.getElementById('tip').innerText")
    step = int(re.match(r"step (\d+)\nreward", told)[1])  # type: ignore[index]
    assert 20 < step < 40  # the axis' numbers move its middle a little
    assert browser.run("document.querySelectorAll('.cursor[visibility=visible]').length") >= 9


def test_a_token_tells_the_weights_that_sampled_it(browser: HeadlessChromium, evaluation: Path):
    """The weights change after two tokens of the second answer."""
    browser.open(f"{group_page(evaluation, '000001')}#c=logprob", width=1280, height=900)
    headers = browser.run("[...document.querySelectorAll('.turn header')].map(h => h.textContent)")
    told = [re.search(r"version ([\d, ]+?) ·", header)[1] for header in headers]  # type: ignore[index]
    assert told[:3] == ["0", "0, 1", "1"]

    def version_of(turn: int, place: int) -> str:
        browser.run(
            f"document.querySelector('#turn-{turn} .tok[data-place=\"{place}\"]').dispatchEvent("
            "new PointerEvent('pointermove', {bubbles: true, clientX: 50, clientY: 50}))"
        )
        tip = browser.run("document.getElementById('tip').textContent")
        return str(re.search(r"policy version(\d)", tip)[1])  # type: ignore[index]

    places = ((1, 3), (2, 0), (2, 1), (2, 2), (2, 3))
    assert [version_of(turn, place) for turn, place in places] == ["0", "0", "0", "1", "1"]


def test_hostile_text_does_nothing(browser: HeadlessChromium, tmp_path: Path):
    made = made_rollout(Words().encode, task=1, attempt=0, note=EVIL)
    pages = write_pages(
        read_run(write_evaluation(tmp_path / "run", [made])), tmp_path / "view"
    ).parent
    browser.open(group_page(pages, "000001"), width=1280, height=900)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert EVIL in browser.run("document.querySelector('.lane .output').textContent")
    assert browser.run("window.harmed") is None
    assert browser.run("document.querySelectorAll('img').length") == 0
