"""Pages of a run: links, safety, what a group's page holds, charts."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from html_page import Page
from made_hunts import Words, made_group, made_rollout
from made_long import equal_rollouts, made_long_rollout
from made_runs import write_evaluation, write_training, write_training_lock

from katgym import UsageError
from katgym.cli.main import main
from katgym.run_view import Band, Panel, Selection, Series, read_run, write_pages
from katgym.run_view.page_frame import safe_json
from katgym.run_view.screens.svg_charts import chart, smoothed, ticks
from katgym.run_view.token_texts import TokenTexts, split_characters
from katgym.run_view.trees.group_json import CHUNK_CHARACTERS
from katgym.run_view.trees.rollout_json import MAX_TEXT

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\udc80 -->"


def data_of(path: Path) -> Any:
    """Return what a data file gives to its page."""
    text = path.read_text()
    assert text.startswith("give(") and text.endswith(");\n")
    return json.loads(text.removeprefix("give(").removesuffix(");\n"))


def pages_of(folder: Path, out: Path, **more: Any) -> tuple[Page, dict[str, Any]]:
    """Write a run's pages; return the first, and the data of its groups by file name."""
    write_pages(read_run(folder, **more), out)
    files = (out / "groups").glob("*.js") if (out / "groups").exists() else []
    return Page((out / "index.html").read_text()), {path.stem: data_of(path) for path in files}


def turns_of(data: Any, rollout: int) -> list[dict[str, Any]]:
    """Return a rollout's turns put together from rows and parts."""
    found = []
    for place in data["rollouts"][rollout]["turns"]:
        given, said, calls, path, took, seconds, times = data["rows"][place]
        parts = data["parts"]
        found.append(
            {
                **parts[said], "given": parts[given], "calls": parts[calls], "path": path,
                "took": took, "seconds": seconds, "times": times,
            }
        )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rollouts = [r for task in range(2) for r in made_group(Words().encode, task)]
    return write_evaluation(tmp_path_factory.mktemp("runs") / "hunt", rollouts)


@pytest.fixture(scope="module")
def written(evaluation: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evaluation's pages."""
    out = tmp_path_factory.mktemp("pages") / "out"
    return write_pages(read_run(evaluation), out).parent


@pytest.fixture(scope="module")
def groups(written: Path) -> dict[str, Any]:
    """What the evaluation's pages hold of its groups, by file name."""
    return {path.stem: data_of(path) for path in (written / "groups").glob("*.js")}


def test_the_list_names_the_file_of_every_group(written: Path, groups: dict[str, Any]):
    told = data_of(written / "list.js")
    assert [group["file"] for group in told["groups"]] == list(dict.fromkeys(
        sorted(groups, key=lambda name: groups[name]["task"])))  # fmt: skip
    for group in told["groups"]:
        rollouts = groups[group["file"]]["rollouts"]
        assert [row[0] for row in group["rollouts"]] == [one["reward"] for one in rollouts]
        assert [row[4] for row in group["rollouts"]] == [len(one["turns"]) for one in rollouts]
        errors = [
            sum(call["error"] is not None for turn in turns_of(groups[group["file"]], place)
                for call in turn["calls"])
            for place in range(len(rollouts))
        ]  # fmt: skip
        assert [row[7] for row in group["rollouts"]] == errors
        assert sum(errors) > 0


def test_pages_load_the_sites_one_script_and_style(written: Path):
    for name in ("index.html", "group.html"):
        page = Page((written / name).read_text())
        assert [a["src"] for a in page.all("script")] == ["assets/katgym.js"]
        assert [a["href"] for a in page.all("link")] == ["assets/katgym.css"]
        for tag in ("img", "iframe", "object", "embed", "use"):
            assert page.all(tag) == []
        assert not any(attr.startswith("on") for _, attrs in page.tags for attr in attrs)
        policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv"))
        assert policy == (
            "default-src 'none'; style-src 'self' file: 'unsafe-inline';"
            " script-src 'self' file:; connect-src 'self'"
        )
    script = (written / "assets" / "katgym.js").read_text()
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", script)


def test_hostile_text_stays_text(tmp_path: Path):
    text = safe_json({"a": EVIL})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": EVIL}
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
    assert index.source.count("<script") == 1 and "<img" not in index.source
    assert "alert(1)" in index.text
    for path in (tmp_path / "out").rglob("*.js"):
        if path.parent.name != "assets":
            assert not set(path.read_text()) & set("<>&\u2028")
    (data,) = groups.values()
    outputs = [call["output"][0] for turn in turns_of(data, 0) for call in turn["calls"]]
    assert any(EVIL in output for output in outputs)
    assert data["rollouts"][0]["components"][0][0] == EVIL


def test_a_groups_data_hold_turns_lanes_and_tokens(evaluation: Path, groups: dict[str, Any]):
    data = next(data for data in groups.values() if data["task"] == "L3-train-000001")
    group = next(g for g in read_run(evaluation).groups if g.task_id == "L3-train-000001")
    for place, told in enumerate(data["rollouts"]):
        rollout, turns = group.rollouts[place].rollout, turns_of(data, place)
        assert told["reward"] == rollout.reward.value
        assert ["policy version", "0 to 1"] in told["facts"]
        mixed = [[0, 2], [1, len(turns[1]["ids"])]]
        assert [turn["versions"] for turn in turns[:2]] == [[[0, len(turns[0]["ids"])]], mixed]
        for turn, shown in zip(rollout.turns, turns, strict=True):
            assert turn.tokens is not None
            assert shown["ids"] == turn.tokens.completion_ids
            assert shown["logprobs"] == pytest.approx(turn.tokens.policy_logprobs, abs=1e-4)
            assert [call["name"] for call in shown["calls"]] == [r.name for r in turn.tool_results]
            for call, times, result in zip(
                shown["calls"], shown["times"], turn.tool_results, strict=True
            ):
                took = result.ended_s - result.started_s
                assert times[2] - times[1] == pytest.approx(took, abs=2e-4)
                assert call["error"] == (result.error and str(result.error))
                assert call["output"][0] == result.content
    branches = [turn["branch"] for turn in turns_of(data, 2)]
    assert branches.count("compaction") == 1
    assert any(name == "shared" for name, _ in data["facts"])
    for data in groups.values():  # results stand in lanes and not among the messages
        for place, told in enumerate(data["rollouts"]):
            shown = [role for turn in turns_of(data, place) for _, role, _ in turn["given"]]
            assert set(shown) == {"system", "user"}
            assert told["rest"] is None


def test_long_outputs_are_cut_and_constraints_told(tmp_path: Path):
    long = made_rollout(Words().encode, task=1, attempt=0, note="x" * (MAX_TEXT + 7))
    held = msgspec.structs.replace(long.turns[1], sampling={"constraint": "json_schema:ab"})
    turns = [long.turns[0], held, *long.turns[2:]]
    _, groups = pages_of(
        write_evaluation(tmp_path / "run", [dataclasses.replace(long, turns=turns)]),
        tmp_path / "out",
    )
    (data,) = groups.values()
    told = turns_of(data, 0)
    call = told[0]["calls"][0]
    assert len(call["output"][0]) == MAX_TEXT
    assert call["output"][1] == len(long.turns[0].tool_results[0].content) - MAX_TEXT
    assert [turn["constraint"] for turn in told[:2]] == [None, "json_schema:ab"]
    assert {turn["constraint"] for turn in told[2:]} <= {None}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "groups").iterdir())


def test_a_long_rollouts_parts_come_in_chunks_and_once_for_equal_siblings(tmp_path: Path):
    made = made_long_rollout(Words().encode, num_turns=63)
    pages_of(write_evaluation(tmp_path / "run", [made]), tmp_path / "out")
    first, *chunks = sorted((tmp_path / "out" / "groups").iterdir(), key=lambda p: len(p.name))
    data, parts = data_of(first), [part for path in sorted(chunks) for part in data_of(path)]
    assert len(chunks) == len(data["chunks"]) == 2
    assert first.stat().st_size < 60_000
    assert all(path.stat().st_size < 1.1 * CHUNK_CHARACTERS for path in chunks)
    turns = turns_of({**data, "parts": parts}, 0)
    assert [turn["content"][0] for turn in turns] == [t.answer["content"] for t in made.turns]
    heads = [data["heads"][row[2]] for row in data["rows"]]
    assert [number for number, head in enumerate(heads, 1) if head[2]] == [37]
    # Each of four has times of its own, which no sibling shares.
    pages_of(write_evaluation(tmp_path / "runs", equal_rollouts(made, 4)), tmp_path / "outs")
    assert size_of(tmp_path / "outs") <= 1.1 * size_of(tmp_path / "out")


def test_token_texts_come_from_the_runs_tokenizer(tmp_path: Path):
    pytest.importorskip("tokenizers", reason="the text of tokens needs the package tokenizers")
    words = Words()
    folder = write_training(tmp_path / "run", words.encode, num_steps=1, num_groups=1)
    words.write(tmp_path / "tiny")
    _, groups = pages_of(folder, tmp_path / "ids")
    (data,) = groups.values()
    assert data["texts"] is None
    assert any("tokens are shown as ids" in note for note in data["notes"])
    _, groups = pages_of(folder, tmp_path / "out", tokenizer=tmp_path / "tiny")
    (data,) = groups.values()
    said = "".join(data["texts"][str(i)] for i in turns_of(data, 0)[0]["ids"])
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


def test_pages_are_replaced_and_other_folders_left_alone(
    evaluation: Path, written: Path, groups: dict[str, Any], tmp_path: Path
):
    out = Path(shutil.copytree(written, tmp_path / "out"))
    kept = read_run(evaluation, Selection(limit=1))
    write_pages(kept, out)
    left = [path.stem for path in (out / "groups").iterdir()]
    assert len(left) == 1 and left[0] in groups
    told = data_of(out / "list.js")["groups"]
    assert [group["file"] for group in told] == [None, left[0]]
    page = Page((out / "index.html").read_text())
    assert "1 of 2 groups have no page here and stand in the lists only" in page.text
    assert "--limit 2 writes all" in page.text
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


def test_charts_of_any_length_stay_in_their_box():
    num_pairs = 0
    for num, value, is_stacked in itertools.product(
        (1, 2, 63, 1025), (0.0, 1e-9, -3.5, 1e7), (False, True)
    ):
        series = [Series(name=n, points=[(float(i), abs(value)) for i in range(num)]) for n in "ab"]
        page = Page(chart(Panel(title="t", series=series, is_stacked=is_stacked)))
        numbers = " ".join(a.get("points") or "" for _, a in page.tags)
        for x, y in (pair.split(",") for pair in numbers.split()):
            assert 46 <= float(x) <= 370 and 8 <= float(y) <= 154, (num, value, is_stacked)
            num_pairs += 1
    assert num_pairs > 1000


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
        (["--step", "3"], "--step is about the written pages; add --html"),
        (["--out", out], "--out is about the written pages; add --html"),
        (["--html", "--json"], "--json prints transcripts; leave it out with --html"),
        (["--html", "--step", "3"], "no group is of step 3; the run has none"),
    ):
        assert main(["view", str(evaluation), *options]) == 2
        assert text in capsys.readouterr().err
    begun = write_training_lock(tmp_path / "training")
    assert main(["view", str(begun)]) == 2
    assert "has no transcripts to print; add --serve or --html" in capsys.readouterr().err


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
