"""`mcp/Questions-v0`: what a file of questions makes, and which answers are right."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import katgym

pytest.importorskip("mcp", reason="needs mcp>=2.3")

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "katgym-plugin-mcp"
from katgym_plugin_mcp.questions import EXAMPLE, Questions, is_right  # noqa: E402 - the SDK is there

SERVER = f"{sys.executable} {EXAMPLE / 'server.py'}"


def write_questions(folder: Path, *lines: dict[str, Any] | str) -> str:
    path = folder / "questions.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return str(path)


def test_the_examples_solutions_are_paid_and_recorded() -> None:
    env = Questions(parallel="math.multiply")
    rollout = asyncio.run(katgym.run_rollout(env, katgym.policy("oracle"), seed=3))
    assert rollout.reward.value == 1.0
    assert [tool["function"]["name"] for tool in rollout.tools] == ["math_add", "math_multiply"]
    results = [result for turn in rollout.turns for result in turn.tool_results]
    assert [result.name for result in results] == ["math_multiply"] * 2 + ["math_add"]
    assert [result.stage for result in results] == [0, 0, 0]
    assert f"<answer>{results[-1].content}</answer>" == rollout.messages[-1]["content"]


def test_a_wrong_and_an_empty_answer_are_not_paid() -> None:
    env = Questions()
    for answer in ("<answer>7</answer>", "", "<answer></answer>"):
        messages, _ = env.reset(seed=0)
        assert messages[0]["content"].startswith("A calculator for whole numbers.")
        assert messages[1]["content"].startswith("What is ")
        assert env.step(answer)[1] == 0.0


def test_a_file_of_questions_makes_the_tasks(tmp_path: Path) -> None:
    path = write_questions(
        tmp_path,
        {"question": "2 and 3?", "answer": 5},
        "",
        {"question": "1 and 1?", "answer": "2", "split": "train", "id": "ones"},
    )
    env = Questions(server=SERVER, questions=path)
    assert env.splits == ("test", "train")
    assert [task.task_id for task in env.tasks("test")] == ["test-1"]
    (task,) = env.tasks("train")
    assert (task.task_id, task.prompt, task.answer) == ("train-ones", "1 and 1?", "2")
    env.reset(seed=0, options={"task_id": "test-1"})
    with pytest.raises(NotImplementedError, match="'test-1' has no solution; 'calls' in its line"):
        env.oracle_action()
    assert env.step("It is <answer>5.0</answer>")[1] == 1.0


def test_a_solution_with_a_tool_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    line = {"question": "?", "answer": 5, "calls": [[{"name": "math.ad", "arguments": {}}]]}
    env = Questions(server=SERVER, questions=write_questions(tmp_path, line))
    env.reset(seed=0)
    with pytest.raises(katgym.UnknownNameError, match=r"'math.ad'\. Did you mean 'math.add'"):
        env.oracle_action()
    env.close()


def test_a_line_that_is_no_question_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, text in {
        '{"question": "?"}': "line 2 is no question: .*`answer`",
        '{"question": "?", "answer": 1, "anwser": 2}': "line 2 is no question: .*`anwser`",
        "2 and 3": "line 2 is no question",
        '{"question": "?", "answer": "\\ud800"}': "line 2 is no question",
    }.items():
        path = write_questions(tmp_path, {"question": "?", "answer": 1}, line)
        with subtests.test(line), pytest.raises(katgym.UsageError, match=text):
            Questions(server=SERVER, questions=path)


def test_what_is_missing_is_told_when_the_env_is_made(tmp_path: Path) -> None:
    with pytest.raises(katgym.UsageError, match="server and questions go together"):
        Questions(server=SERVER)
    with pytest.raises(katgym.UsageError, match="cannot be read"):
        Questions(server=SERVER, questions=str(tmp_path / "none.jsonl"))
    with pytest.raises(katgym.UsageError, match="holds none"):
        Questions(server=SERVER, questions=write_questions(tmp_path, ""))
    with pytest.raises(katgym.UsageError, match="no program 'pyhton'"):
        Questions(server="pyhton server.py", questions=write_questions(tmp_path, ""))
    with pytest.raises(katgym.UsageError, match="is no folder"):
        Questions(files=str(tmp_path / "none"))


VERDICTS = {
    ("Paris", "paris"): True,
    ("So: <answer> New\n York. </answer>", "new york"): True,
    ("It is Paris", "Paris"): False,
    ("<answer>Paris</answer> <answer>Rome</answer>", "Paris"): False,
    ("<answer>Paris</answer> yes, <ANSWER>paris</ANSWER>", "Paris"): True,
    ("<answer>Paris", "Paris"): False,
    ("1,234.50", "1234.5"): True,
    ("1.0000001e3", "1000"): True,
    ("1001", "1000"): False,
    ("12,34", "1234"): False,
    ("0.0000001", "0"): False,
    ("-0", "0"): True,
    ("nan", "1"): False,
    ("1e999", "2e999"): False,
    ("7 or 8", "7"): False,
    ("", ""): False,
    (".", "0"): False,
}


def test_an_answer_is_right_as_text_or_as_a_number() -> None:
    assert {pair: is_right(*pair) for pair in VERDICTS} == VERDICTS


def test_reading_a_response_of_open_tags_comes_to_an_end() -> None:
    """So many that a search from each of them to the end would take hours."""
    assert not is_right("<answer>" * 1_000_000, "7")


def test_an_episode_cannot_be_copied() -> None:
    with pytest.raises(katgym.UsageError, match="Questions cannot be copied"):
        copy.deepcopy(Questions())


@pytest.mark.slow
def test_the_hook_module_does_not_import_the_sdk() -> None:
    script = (
        "import sys, katgym_plugin_mcp.plugin as p;"
        "ids = []; p.katgym_register_envs(lambda id, *a, **k: ids.append(id));"
        "p.katgym_register_commands(lambda name, *a, **k: ids.append(name));"
        "print('mcp' in sys.modules, *ids)"
    )
    paths = os.pathsep.join([str(PLUGIN), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "mcp/Questions-v0", "mcp"]
