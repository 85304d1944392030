"""Pages of a run: links, safety, what a group's page holds, charts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from made_hunts import Words, made_group, made_rollout
from made_runs import write_evaluation, write_training, write_training_lock

from katgym import UsageError
from katgym.cli.main import main
from katgym.run_view import Band, Panel, Selection, Series, read_run, write_pages
from katgym.run_view.page_frame import safe_json
from katgym.run_view.rollout_json import MAX_TEXT
from katgym.run_view.svg_charts import chart, smoothed, ticks
from katgym.run_view.token_texts import TokenTexts, split_characters

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\udc80 -->"


def pages_of(folder: Path, out: Path, **more: Any) -> tuple[Page, dict[str, Page]]:
    """Write a run's pages; return the first, and those of its groups by file name."""
    write_pages(read_run(folder, **more), out)
    groups = {path.name: Page(path.read_text()) for path in (out / "groups").glob("*.html")}
    return Page((out / "index.html").read_text()), groups


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    rollouts = [r for task in range(2) for r in made_group(Words().encode, task)]
    return write_evaluation(tmp_path / "hunt", rollouts)


def test_every_link_leads_to_a_page(evaluation: Path, tmp_path: Path):
    index, groups = pages_of(evaluation, tmp_path / "out")
    links = [attrs["href"] for attrs in index.all("a")]
    assert sorted(links) == sorted(f"groups/{name}" for name in groups)
    for page in groups.values():
        for address in [a["href"] or "" for a in page.all("a")]:
            if not address.startswith("#"):
                assert (tmp_path / "out" / "groups" / address).resolve().is_file()
    neighbours = [{a.get("rel") for a in page.all("a")} - {None} for page in groups.values()]
    assert sorted(map(sorted, neighbours)) == [["next"], ["prev"]]


def test_pages_load_nothing_and_run_our_script_alone(evaluation: Path, tmp_path: Path):
    index, groups = pages_of(evaluation, tmp_path / "out")
    for page in [index, *groups.values()]:
        for tag in ("link", "img", "iframe", "object", "embed", "use"):
            assert page.all(tag) == []
        assert not any("src" in attrs or ("style" in attrs and "url(" in str(attrs["style"]))
                       for _, attrs in page.tags)  # fmt: skip
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
        policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv"))
        digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
        assert policy == (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        )


def test_hostile_text_stays_text(tmp_path: Path):
    words = Words()
    made = made_rollout(words.encode, task=1, attempt=0, note=EVIL)
    reward = dataclasses.replace(
        made.reward, components={EVIL: made.reward.components["correct"]}, reason=EVIL
    )
    hostile = dataclasses.replace(
        made,
        task_id=EVIL,
        env_id=EVIL,
        policy=EVIL,
        reason=EVIL,
        reward=reward,
        episode_id=EVIL.encode(errors="replace").decode(),  # a session's name is Unicode
    )
    folder = write_evaluation(tmp_path / "run", [hostile])
    lock = json.loads((folder / "lock.json").read_text())
    lock["policy"] = EVIL
    lock["envs"][0]["kwargs"] = {EVIL: EVIL}
    (folder / "lock.json").write_text(json.dumps(lock))
    index, groups = pages_of(folder, tmp_path / "out")
    (page,) = groups.values()
    for one in (index, page):
        assert one.source.count("<script") <= 2 and "<img" not in one.source
        assert "alert(1)" in one.text
    outputs = [row["output"][0] for turn in page.data()["rollouts"][0]["turns"]
               for row in turn["lanes"]["rows"]]  # fmt: skip
    assert any(EVIL in output for output in outputs)
    assert page.data()["rollouts"][0]["components"][0][0] == EVIL


def test_json_in_a_page_cannot_end_its_element():
    text = safe_json({"a": EVIL})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": EVIL}


def test_a_group_page_holds_turns_lanes_and_tokens(evaluation: Path, tmp_path: Path):
    _, groups = pages_of(evaluation, tmp_path / "out")
    view = read_run(evaluation)
    page = next(p for name, p in groups.items() if "000001" in name)
    group = next(g for g in view.groups if g.task_id == "L3-train-000001")
    for place, told in enumerate(page.data()["rollouts"]):
        rollout = group.rollouts[place].rollout
        assert told["reward"] == rollout.reward.value
        assert len(told["turns"]) == rollout.num_turns
        assert ["policy version", "0 to 1"] in told["facts"]
        mixed = [[0, 2], [1, len(told["turns"][1]["ids"])]]
        assert [turn["versions"] for turn in told["turns"][:2]] == [
            [[0, len(told["turns"][0]["ids"])]],
            mixed,
        ]
        for turn, shown in zip(rollout.turns, told["turns"], strict=True):
            assert turn.tokens is not None
            assert shown["ids"] == turn.tokens.completion_ids
            assert shown["logprobs"] == pytest.approx(turn.tokens.policy_logprobs, abs=1e-4)
            assert [row["name"] for row in shown["lanes"]["rows"]] == [
                result.name for result in turn.tool_results
            ]
            for row, result in zip(shown["lanes"]["rows"], turn.tool_results, strict=True):
                took = result.ended_s - result.started_s
                assert row["end"] - row["start"] == pytest.approx(took, abs=2e-4)
                assert row["error"] == (result.error and str(result.error))
                assert row["output"][0] == result.content
    compacted = page.data()["rollouts"][2]["turns"]
    assert [turn["branch"] for turn in compacted].count("compaction") == 1
    assert any(name == "shared" for name in re.findall(r"<dt>(\w+)</dt>", page.source))


def test_results_stand_in_lanes_and_not_among_the_messages(evaluation: Path, tmp_path: Path):
    _, groups = pages_of(evaluation, tmp_path / "out")
    for page in groups.values():
        for told in page.data()["rollouts"]:
            shown = [role for turn in told["turns"] for _, role, _ in turn["given"]]
            assert set(shown) == {"system", "user"}
            assert told["rest"] == []


def test_long_outputs_are_cut_and_the_page_says_by_how_much(tmp_path: Path):
    long = made_rollout(Words().encode, task=1, attempt=0, note="x" * (MAX_TEXT + 7))
    folder = write_evaluation(tmp_path / "run", [long])
    _, groups = pages_of(folder, tmp_path / "out")
    (page,) = groups.values()
    row = page.data()["rollouts"][0]["turns"][0]["lanes"]["rows"][0]
    assert len(row["output"][0]) == MAX_TEXT
    assert row["output"][1] == len(long.turns[0].tool_results[0].content) - MAX_TEXT


def test_token_texts_come_from_the_runs_tokenizer(tmp_path: Path):
    pytest.importorskip("tokenizers", reason="the text of tokens needs the package tokenizers")
    words = Words()
    folder = write_training(tmp_path / "run", words.encode, num_steps=1, num_groups=1)
    words.write(tmp_path / "tiny")
    _, groups = pages_of(folder, tmp_path / "ids")
    (page,) = groups.values()
    assert page.data()["texts"] is None
    assert "tokens are shown as ids" in page.text
    _, groups = pages_of(folder, tmp_path / "out", tokenizer=tmp_path / "tiny")
    (page,) = groups.values()
    data = page.data()
    said = "".join(data["texts"][str(i)] for i in data["rollouts"][0]["turns"][0]["ids"])
    assert said.startswith(("I look at", "The chests")) and said.endswith("<|im_end|>")
    lock = json.loads((folder / "lock.json").read_text())
    lock["run"]["model"]["path"] = str(tmp_path / "tiny")
    (folder / "lock.json").write_text(json.dumps(lock))
    assert read_run(folder).token_texts is not None
    with pytest.raises(UsageError, match=r"holds no tokenizer.json; --tokenizer names"):
        read_run(folder, tokenizer=tmp_path)


def test_pages_of_a_run_that_has_only_begun(tmp_path: Path):
    index, groups = pages_of(write_training_lock(tmp_path / "new"), tmp_path / "out")
    assert groups == {}
    assert "No step is finished yet" in index.text
    assert index.all("table") == [] and index.all("svg") == []


def test_pages_are_replaced_and_other_folders_left_alone(evaluation: Path, tmp_path: Path):
    out = tmp_path / "out"
    _, groups = pages_of(evaluation, out)
    kept = read_run(evaluation, Selection(limit=1))
    write_pages(kept, out)
    left = [path.name for path in (out / "groups").iterdir()]
    assert len(left) == 1 and left[0] in groups
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UsageError, match="is not empty and holds no pages of katgym view"):
        write_pages(kept, tmp_path / "mine")
    with pytest.raises(UsageError, match="is a file; --out names a folder"):
        write_pages(kept, tmp_path / "mine" / "letter.txt")


def test_a_chart_has_its_numbers_for_the_pointer():
    points = [(1.0, 0.25), (2.0, 0.5)]
    bands = [Band(x=1, low=0.0, high=0.5), Band(x=2, low=0.25, high=0.75)]
    series = [Series(name="rollout/reward", points=points, bands=bands)]
    page = Page(chart(Panel(title="A < B", unit="u & v", series=series)))
    (plot,) = page.all("svg")
    data = json.loads(plot["data-chart"] or "")
    assert data["series"] == [
        {"name": "reward", "points": [[1, 0.25], [2, 0.5]],
         "bands": [[1, 0.0, 0.5], [2, 0.25, 0.75]]}
    ]  # fmt: skip
    assert plot["aria-label"] == "A < B: reward from 0.25 to 0.5"
    assert page.text.startswith("A < B u & v")


@pytest.mark.parametrize("num", [1, 2, 63, 1025])
@pytest.mark.parametrize("value", [0.0, 1e-9, -3.5, 1e7])
@pytest.mark.parametrize("is_stacked", [False, True])
def test_charts_of_any_length_stay_in_their_box(num: int, value: float, is_stacked: bool):
    series = [Series(name=n, points=[(float(i), abs(value)) for i in range(num)]) for n in "ab"]
    page = Page(chart(Panel(title="t", series=series, is_stacked=is_stacked)))
    numbers = " ".join(a.get("points") or "" for _, a in page.tags)
    for x, y in (pair.split(",") for pair in numbers.split()):
        assert 46 <= float(x) <= 370 and 8 <= float(y) <= 154


def test_round_ticks_and_means_of_neighbours():
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert ticks(1, 3, 6, is_whole=True) == [1, 2, 3]
    assert ticks(-0.07, 0.04, 5) == pytest.approx([-0.05, 0])
    assert smoothed([2.0, 2.0, 2.0], 2) == pytest.approx([2.0, 2.0, 2.0])
    # d = 1/2: (1 + 0/2 + 0/4) / (1 + 1/2 + 1/4), and so on.
    assert smoothed([1.0, 0.0, 0.0], 2) == pytest.approx([4 / 7, 1 / 4, 1 / 7])


def test_the_command_writes_pages_and_refuses_options_that_do_not_go_together(
    evaluation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["view", str(evaluation), "--html"]) == 0
    assert capsys.readouterr().out.strip() == str(evaluation / "view" / "index.html")
    assert len(list((evaluation / "view" / "groups").iterdir())) == 2
    out = str(tmp_path / "one")
    task = ["--task", "L3-train-000001"]
    assert main(["view", str(evaluation), "--html", "--out", out, *task]) == 0
    assert len(list((tmp_path / "one" / "groups").iterdir())) == 1
    capsys.readouterr()
    for options, text in (
        (["--step", "3"], "--step is about the pages; add --html"),
        (["--out", out], "--out is about the pages; add --html"),
        (["--html", "--json"], "--json prints transcripts; leave it out with --html"),
        (["--html", "--step", "3"], "no group is of step 3; the run has none"),
    ):
        assert main(["view", str(evaluation), *options]) == 2
        assert text in capsys.readouterr().err
    begun = write_training_lock(tmp_path / "training")
    assert main(["view", str(begun)]) == 2
    assert "has no transcripts to print; add --html" in capsys.readouterr().err


def test_characters_of_several_tokens_are_whole():
    tokenizers = pytest.importorskip("tokenizers", reason="the text of tokens needs tokenizers")
    pieces = pre_tokenized_bytes(tokenizers)
    texts = TokenTexts(pieces)
    ids = pieces.encode("a\u2603 b\n\u00e9").ids
    assert len(ids) == 9  # the snowman has three bytes, the e two
    assert list(split_characters(texts, ids)) == [(1, 3, "\u2603"), (7, 2, "\u00e9")]
    assert [texts.text(i) for i in ids[4:7]] == [" ", "b", "\n"]
    assert texts.joined(ids) == "a\u2603 b\n\u00e9"
    assert texts.text(10**6) == ""


def pre_tokenized_bytes(tokenizers: Any) -> Any:
    """Return a tokenizer whose tokens are bytes."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made
