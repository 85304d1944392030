"""A run's folder: what starting writes, what is refused, what continuing cuts off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from katgym.errors import UsageError
from katgym_trainer.runs.run_folder import RunFolder

RUN = {"kind": "sft", "data": {"oracle": None}, "trainer": {"learning_rate": 0.1}}


def open_run(path: Path, *, is_resume: bool = False, **changes: Any) -> RunFolder:
    return RunFolder.open(
        path, config_text="# told\n", identity={**RUN, **changes}, is_resume=is_resume
    )


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def begun(path: Path, steps: int = 3) -> None:
    """Leave a run of some steps behind."""
    with open_run(path) as folder:
        folder.open_metrics(0)
        for step in range(1, steps + 1):
            folder.append_metrics(step, {"train/loss": 1 / step})


def test_starting_keeps_the_file_and_what_defines_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path / "a"):
        assert (tmp_path / "a" / "config.toml").read_text() == "# told\n"
        lock = json.loads((tmp_path / "a" / "lock.json").read_text())
    assert (lock["run"], lock["data"], lock["format"]) == (RUN, None, 1)
    assert len(lock["run_id"]) == 8 and {"katgym", "torch", "python"} <= set(lock["versions"])


def test_metrics_are_lines_and_what_is_no_number_is_null(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.open_metrics(0)
        folder.append_metrics(1, {"train/loss": 0.5, "train/grad_norm": float("nan")})
        text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "train/loss": 0.5, "train/grad_norm": null}\n'


def test_continuing_cuts_metrics_back_to_the_checkpoint(tmp_path: Path) -> None:
    begun(tmp_path, 5)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train/lo')  # as a kill leaves it
    with open_run(tmp_path, is_resume=True) as folder:
        folder.open_metrics(3)
        folder.append_metrics(4, {"train/loss": 9.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["train/loss"] for line in lines] == [1.0, 1 / 2, 1 / 3, 9.0]


def test_a_run_is_continued_by_whoever_opens_it_and_never_becomes_another(tmp_path: Path) -> None:
    begun(tmp_path)
    before = contents(tmp_path)
    lock = json.loads(before["lock.json"])
    with open_run(tmp_path) as folder:
        assert folder.lock == lock
    words = r"holds another run \(trainer.learning_rate: there 0.1, here 0.2\); name another"
    for is_resume in (False, True):
        with pytest.raises(UsageError, match=words):
            open_run(tmp_path, is_resume=is_resume, trainer={"learning_rate": 0.2})
    assert contents(tmp_path) == before


def test_a_run_without_a_step_may_be_begun_anew(tmp_path: Path) -> None:
    open_run(tmp_path, data={"oracle": {"seed": 0}}).close()
    (tmp_path / "oracle").mkdir()
    open_run(tmp_path, data={"oracle": {"seed": 0}}, trainer={"learning_rate": 0.2}).close()
    assert (tmp_path / "oracle").exists()
    open_run(tmp_path, data={"oracle": {"seed": 1}}).close()
    assert not (tmp_path / "oracle").exists()
    assert json.loads((tmp_path / "lock.json").read_text())["run"]["data"]["oracle"]["seed"] == 1


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for is_resume in (False, True):
        with pytest.raises(
            UsageError, match=r"is not empty \(it holds 'thesis.tex'\) and holds no"
        ):
            open_run(tmp_path, is_resume=is_resume)
    assert contents(tmp_path) == {"thesis.tex": b"x"}
    with pytest.raises(UsageError, match=r"thesis.tex' is a file; --out names a folder"):
        open_run(tmp_path / "thesis.tex")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "envs": []}', '{"format": 9}'])
def test_locks_of_others_are_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(UsageError, match=r"lock.json' is not (valid JSON|of a training run)"):
        open_run(tmp_path, is_resume=True)
    assert (tmp_path / "lock.json").read_text() == text


def test_there_has_to_be_a_run_to_continue(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no run in .* to continue; leave out --resume"):
        open_run(tmp_path / "a", is_resume=True)
    open_run(tmp_path / "a").close()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    begun(tmp_path)
    source = (
        "import sys, pathlib\nfrom katgym.system import FolderGuard\n"
        "guard = FolderGuard(pathlib.Path(sys.argv[1]))\nguard.take()\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        before = contents(tmp_path)
        for is_resume in (False, True):
            with pytest.raises(UsageError, match="another process is writing to"):
                open_run(tmp_path, is_resume=is_resume)
        assert contents(tmp_path) == before
        other.communicate("")
    open_run(tmp_path, is_resume=True).close()


def test_data_that_changed_are_refused(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.set_data({"num_rollouts": 3, "rows_sha256": "a"})
        folder.set_data({"num_rollouts": 3, "rows_sha256": "a"})
    begun_lock = (tmp_path / "lock.json").read_bytes()
    with open_run(tmp_path, is_resume=True) as folder:
        words = r'are not what they were \(rows_sha256: there "a", here "b"\)'
        with pytest.raises(UsageError, match=words):
            folder.set_data({"num_rollouts": 3, "rows_sha256": "b"})
    assert (tmp_path / "lock.json").read_bytes() == begun_lock
