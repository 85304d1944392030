"""Stored rollouts in other libraries' formats, against rows written by hand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from made_sessions import BRANCHED, CALLING, RESULT, TOOLS, TWO_ANSWERS, add, turn
from plain_rollout import plain_json

from katgym import UnknownNameError, UsageError, assistant, run_rollout, user
from katgym.play.rollout import Rollout
from katgym.plugins.contributions import EntryKind
from katgym.plugins.discovery import discover
from katgym.plugins.loader import PluginLoader, exporters
from katgym.rollout_store import (
    ColumnType,
    Exporter,
    RolloutStore,
    SessionStatus,
    export,
    record_rollout,
    rollouts,
)
from katgym.rollout_store.exporting import write_rows
from katgym.testing import EchoEnv, ScriptedPolicy

ASKED = user("how much?")


@pytest.fixture
def filled(store: RolloutStore) -> RolloutStore:
    add(store, "s1", BRANCHED, reward=1.0)
    add(store, "s2", TWO_ANSWERS, reward=0.25)
    add(store, "bad", BRANCHED[:1], status=SessionStatus.FAILED, reward=1.0)
    add(store, "silent", BRANCHED[:1])
    return store


def rows(store: RolloutStore, out: Path, format: str, **more: Any) -> list[dict[str, Any]]:
    num = export(store, out, format=format, **more)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == num
    return found


def of(found: list[dict[str, Any]], session_id: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(r[n] for n in names) for r in found if r["session_id"] == session_id]


def test_messages_are_the_conversation_of_each_path(filled: RolloutStore, tmp_path: Path) -> None:
    found = rows(filled, tmp_path / "out.jsonl", "messages")
    assert of(found, "s1", "messages") == [
        ([ASKED, CALLING, RESULT, assistant("two")],),
        ([ASKED, user("so far: 2"), assistant("done")],),
    ]
    assert of(found, "s2", "messages") == [
        ([user("pick"), assistant("a")],),
        ([user("pick"), assistant("b")],),
    ]
    assert json.loads(found[0]["tools"]) == TOOLS
    assert {(r["session_id"], r["reward"], r["status"]) for r in found} == {
        ("s1", 1.0, "finished"), ("s2", 0.25, "finished"), ("silent", None, "finished"),
    }  # fmt: skip


def test_each_answer_is_completed_once(filled: RolloutStore, tmp_path: Path) -> None:
    found = rows(filled, tmp_path / "out.jsonl", "prompt-completion")
    assert of(found, "s1", "prompt", "completion") == [
        ([ASKED], [CALLING]),
        ([ASKED, CALLING, RESULT], [assistant("two")]),
        ([ASKED, user("so far: 2")], [assistant("done")]),
    ]


HELD = {"sampling": {"constraint": "json_schema:ab"}}
CONSTRAINED = [
    turn(0, None, 0, [1, 2], [3], [ASKED], assistant("{}"), **HELD),
    turn(1, 0, 3, [4], [5], [user("more")], assistant("two"), 1),
]


def test_what_was_sampled_under_a_constraint_is_masked_or_left_out(
    store: RolloutStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, "s1", CONSTRAINED, reward=1.0)
    (row,) = rows(store, tmp_path / "trl.jsonl", "trl")
    assert row["labels"] == [-100, -100, -100, -100, 5]
    assert (row["completion_ids"], row["logprobs"]) == ([5], [-5 / 8])
    (row,) = rows(store, tmp_path / "rows.jsonl", "rows")
    assert row["loss_mask"] == [False, False, False, False, True]
    assert rows(store, tmp_path / "messages.jsonl", "messages") == []
    (row,) = rows(store, tmp_path / "pairs.jsonl", "prompt-completion")
    assert row["completion"] == [assistant("two")]
    told = "'s1': left out what holds the answer of call 0, sampled under a constraint"
    assert caplog.text.count(told) == 2
    (row,) = rows(store, tmp_path / "rollouts.jsonl", "rollouts")
    assert row["turns"][0]["sampling"] == HELD["sampling"]


def test_trl_has_labels_for_sft_and_a_mask_for_rollout_functions(
    filled: RolloutStore, tmp_path: Path
) -> None:
    found = rows(filled, tmp_path / "out.jsonl", "trl")
    names = ("input_ids", "labels", "prompt_ids", "completion_ids", "logprobs", "env_mask")
    assert of(found, "s1", *names) == [
        ([1, 2, 3, 4, 5, 6, 7], [-100, -100, 3, 4, -100, 6, 7], [1, 2], [3, 4, 5, 6, 7],
         [-0.375, -0.5, 0.0, -0.75, -0.875], [1, 1, 0, 1, 1]),
        ([1, 2, 8, 9], [-100, -100, -100, 9], [1, 2, 8], [9], [-1.125], [1]),
    ]  # fmt: skip


def test_verl_has_the_fields_of_its_agent_loops(filled: RolloutStore, tmp_path: Path) -> None:
    found = rows(filled, tmp_path / "out.jsonl", "verl")
    names = (
        "uid", "prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score",
        "num_turns",
    )  # fmt: skip
    assert of(found, "s1", *names) == [
        ("g", [1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 1, 1], [-0.375, -0.5, 0.0, -0.75, -0.875], 1.0, 2),
        ("g", [1, 2, 8], [9], [1], [-1.125], 1.0, 1),
    ]


def test_unknown_logprobs_are_none(store: RolloutStore, tmp_path: Path) -> None:
    add(store, "s", [turn(0, None, 0, [1], [2], [ASKED], assistant("x"), policy_logprobs=[])])
    for name, column in (
        ("trl", "logprobs"), ("verl", "response_logprobs"), ("rows", "policy_logprobs"),
    ):  # fmt: skip
        assert of(rows(store, tmp_path / "out.jsonl", name), "s", column) == [(None,)]


def test_rollouts_without_tokens_are_left_out_where_tokens_are_needed(
    filled: RolloutStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = ScriptedPolicy([CALLING, assistant("two"), assistant("done")])
    played = asyncio.run(run_rollout(EchoEnv(max_turns=3), policy, seed=0))
    out, last = tmp_path / "out.jsonl", len(played.turns) - 1
    before = {name: rows(filled, out, name) for name in exporters()}
    record_rollout(filled, played)
    new = {}
    for name in exporters():
        caplog.clear()
        found = rows(filled, out, name)
        assert found[: len(before[name])] == before[name], name
        new[name] = found[len(before[name]) :]
        told = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
        needs_tokens = name in ("trl", "verl", "rows")
        assert (new[name] == [], len(told)) == ((True, 1) if needs_tokens else (False, 0)), name
        assert all(s.startswith("left out 1 rollouts: policy 'scripted' records no") for s in told)
    # One conversation, up to its last answer.
    assert [row["messages"] for row in new["messages"]] == [played.conversation(last)]
    assert [row["prompt"] + row["completion"] for row in new["prompt-completion"]] == [
        played.conversation(place) for place in range(last + 1)
    ]
    assert [row["session_id"] for row in new["atif"]] == [played.episode_id]
    assert new["rollouts"] == [plain_json(played)]


def test_sessions_are_chosen_by_status_and_reward(filled: RolloutStore, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    def ids(**more: Any) -> set[str]:
        return {row["session_id"] for row in rows(filled, out, "rows", **more)}

    assert ids() == {"s1", "s2", "silent"}
    assert ids(min_reward=0.25) == {"s1", "s2"}
    assert ids(min_reward=0.5) == {"s1"}
    assert ids(statuses=[SessionStatus.FAILED]) == {"bad"}
    assert [r["reward"] for r in rows(filled, out, "rows", statuses=[SessionStatus.FAILED])] == [
        None
    ]


def test_parquet_holds_what_json_lines_hold(filled: RolloutStore, tmp_path: Path) -> None:
    filled.seal()
    for name in set(exporters()) - {"rollouts", "atif"}:  # text there
        lines = rows(filled, tmp_path / "out.jsonl", name)
        assert export(filled, tmp_path / "out.parquet", format=name) == len(lines)
        table = pq.read_table(tmp_path / "out.parquet").to_pylist()
        for row in table:
            for column in {"messages", "prompt", "completion"} & row.keys():
                row[column] = [without_nulls(message) for message in row[column]]
        assert table == lines, name


def without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    for call in message["tool_calls"] or ():
        del call["error"]
    return {key: value for key, value in message.items() if value is not None}


def test_a_file_is_whole_or_not_there(filled: RolloutStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.jsonl or \.parquet"):
        export(filled, tmp_path / "out.csv", format="rows")
    with pytest.raises(UnknownNameError, match=r"unknown exporter 'row'\. Did you mean 'rows'"):
        export(filled, tmp_path / "out.jsonl", format="row")
    with filled.connections.write() as connection:
        connection.execute("UPDATE turns SET text = '{}' WHERE call_id = 'call-2'")
    with pytest.raises(UsageError, match="have changed"):
        export(filled, tmp_path / "out.jsonl", format="rows")
    assert list(tmp_path.glob("*out*")) == []


PLUGIN = """
import katgym
from katgym.play.rollout import Rollout
from katgym.rollout_store import ColumnType, Exporter

def rows(stored):
    yield {"id": stored.record.session_id, "num_calls": len(stored.turns)}

COUNTS = Exporter(rows=rows, columns={"id": ColumnType.TEXT, "num_calls": ColumnType.INTEGER})

@katgym.hookimpl
def katgym_register_exporters(register): register("counts", f"{__name__}:COUNTS")
"""


def test_a_plugin_adds_a_format(plugin_tree: Any, filled: RolloutStore, tmp_path: Path) -> None:
    plugin_tree.add_plugin("acme", PLUGIN)
    loader = PluginLoader(lambda: discover([str(plugin_tree.folder)]), built_in_modules=())
    found = loader.load().find(EntryKind.EXPORTER, "counts").load()
    assert isinstance(found, Exporter)
    printed = plugin_tree.run(
        f"""
        import sys
        from katgym.cli.main import main
        store, out = {str(filled.folder)!r}, {str(tmp_path / "counts.jsonl")!r}
        sys.exit(main(["rollouts", "export", store, "--format", "counts", "--out", out]))
        """
    )
    assert printed == ""
    lines = (tmp_path / "counts.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": "s1", "num_calls": 3},
        {"id": "s2", "num_calls": 2},
        {"id": "silent", "num_calls": 1},
    ]  # fmt: skip


def test_rows_have_to_fit_their_columns(filled: RolloutStore, tmp_path: Path) -> None:
    misnamed = r"made a row with \['a'\]; its columns are \['b'\]"
    for row, columns, why in (
        ({"a": 1}, {"b": ColumnType.INTEGER}, misnamed),
        ({"a": "x"}, {"a": ColumnType.TOKEN_IDS}, "does not fit its columns"),
    ):
        form = Exporter(rows=lambda _, row=row: [row], columns=columns)
        with pytest.raises(UsageError, match=why):
            write_rows(tmp_path / "x.parquet", "mine", form, filled.each())
    assert list(tmp_path.glob("*x.parquet*")) == []


def test_rollouts_are_written_as_they_are(filled: RolloutStore, tmp_path: Path) -> None:
    found = rows(filled, tmp_path / "out.jsonl", "rollouts")
    expected = {name: rollouts(filled, name).to_json() for name in ("s1", "s2", "silent")}
    assert {row["episode_id"]: row for row in found} == json.loads(json.dumps(expected))
    assert Rollout.from_json(found[0]).trajectories()
    export(filled, tmp_path / "out.parquet", format="rollouts")
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{k: json.loads(v) for k, v in row.items()} for row in table] == found
