"""Tasks made of the toy package: sound, hidden, the same each time, and not lost by a kill."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from toy_set import MAKE, make_toy_set
from waiting import wait_until

from katgym.errors import UsageError
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.packages import open_package
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import DATA, open_source
from swe_sets.make_sets import main as write_set

pytestmark = pytest.mark.slow  # a set is made

UNPINNED = re.compile(rb'("(?:iniconfig|packaging|pluggy|pygments))==[^"]+')
"""What pytest's pinned version needs, in the newest version of the day on which a set is made."""


def test_a_made_set_hides_what_is_graded(made: Path) -> None:
    hidden = made / "hidden"
    assert stat.S_IMODE(hidden.stat().st_mode) == 0o700
    source = MutationSet(hidden)
    rows = [json.loads(line) for line in (made / "tasks.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        whole = source.load_hidden(row["instance_id"])
        assert not row["patch"] and not row["test_patch"] and not row["FAIL_TO_PASS"]
        assert not row["PASS_TO_PASS"]
        text = json.dumps(row)
        for node in whole.fail_to_pass:
            assert node.rpartition("::")[2].partition("[")[0] not in text
        added = [line[1:].strip() for line in whole.gold_patch.splitlines() if line[:1] == "+"]
        assert not any(line in row["problem_statement"] for line in added[1:] if len(line) > 8)


def test_tasks_differ_and_lack_their_failing_tests(made: Path) -> None:
    source = open_source(made)
    states = set()
    for task in source.tasks():
        files = source.base_files(task.instance_id)
        states.add(tuple(sorted(files.items())))
        shown = b"\n".join(c for p, c in files.items() if p.startswith("tests/"))
        for node in source.load_hidden(task.instance_id).fail_to_pass:
            name = node.rpartition("::")[2].partition("[")[0]
            assert f"def {name}(".encode() not in shown
    assert len(states) == 6


def test_gold_resolves_and_nothing_does_not(made: Path) -> None:
    source = open_source(made)

    async def go() -> list[tuple[Outcome, Outcome]]:
        async with aclosing(backend("local")) as sandboxes:
            found = []
            for task in list(source.tasks())[:3]:
                graded = GradedTask.load(source, task.instance_id)
                gold = await grade(graded, graded.hidden.gold_patch, backend=sandboxes)
                path = next(iter(graded.hidden.gold_files))
                comment = graded.base_files[path] + b"# nothing\n"
                text = f"--- a/{path}\n+++ b/{path}\n"
                last = graded.base_files[path].decode().splitlines()
                text += f"@@ -{len(last)} +{len(last)},2 @@\n {last[-1]}\n+# nothing\n"
                assert comment.endswith(b"# nothing\n")
                found.append((gold.outcome, (await grade(graded, text, backend=sandboxes)).outcome))
            return found

    for gold, noop in asyncio.run(go()):
        assert gold is Outcome.RESOLVED
        assert noop in (Outcome.FAILED, Outcome.PARTIAL)


def test_the_same_command_adds_nothing_and_other_settings_are_refused(made: Path) -> None:
    before = (made / "hidden" / "specs.jsonl").read_bytes()
    again = make_toy_set(made, 6)
    assert again.returncode == 0
    assert "6 tasks, choosing canaries of parcelkit-1.0.0" in again.stderr
    assert (made / "hidden" / "specs.jsonl").read_bytes() == before
    other = make_toy_set(made, 6, "--seed", "1")
    assert other.returncode == 2
    assert "was begun with seed 0, not 1" in other.stderr


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = make_toy_set(tmp_path, 1)
    assert done.returncode == 2 and "is not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_kill_in_the_middle_changes_nothing_about_the_set(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    command = [*MAKE, "--out", str(folder), "--tasks", "500"]  # it is in the middle for long
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal = folder / "hidden" / "journal.jsonl"
    wait_until(
        lambda: journal.exists() and journal.read_bytes().count(b'"trial"') >= 2, "two trials"
    )
    process.send_signal(signal.SIGSTOP)
    second = make_toy_set(folder, 6)
    assert second.returncode == 2 and "another process is writing" in second.stderr
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "tasks.jsonl").exists()
    assert make_toy_set(folder, 6).returncode == 0
    assert contents(folder) == contents(made)


def test_a_busy_machine_makes_the_same_set(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        done = make_toy_set(folder, 6, "--workers", "5")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr
    assert contents(folder) == contents(made)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a set; one that is only there to be locked is not of it."""
    paths = {p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock")}
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


def test_the_toy_set_that_comes_along_is_what_making_it_gives(tmp_path: Path) -> None:
    assert write_set(["toy", "--out", str(tmp_path / "toy")]) == 0
    for path in (DATA / "toy").rglob("*.json*"):
        name = path.relative_to(DATA / "toy")
        made, kept = ((folder / name).read_bytes() for folder in (tmp_path / "toy", DATA / "toy"))
        assert UNPINNED.sub(rb"\1", made) == UNPINNED.sub(rb"\1", kept), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)], check=True)
    try:
        done = make_toy_set(small / "toy", 6)
        assert done.returncode == 1, done.stderr
        assert "full" in done.stderr and "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_unknown_package_is_refused() -> None:
    with pytest.raises(UsageError, match="In the table: inflection"):
        open_package("no-such-package")
