"""A run's folder: what starting writes, what is refused, what continuing cuts off.

Then the order of its rollouts, signals that end it, its log and what is shown of it.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from katgym import console
from katgym.errors import UsageError
from katgym_trainer.cli.train_progress import TrainProgress
from katgym_trainer.runs.data_order import DataOrder
from katgym_trainer.runs.process.run_log import log_to
from katgym_trainer.runs.process.stop_signals import StopSignals
from katgym_trainer.runs.run_folder import RunFolder
from katgym_trainer.saving.interrupts import hold_interrupts

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
        with pytest.raises(UsageError, match=r"not empty \(it holds 'thesis.tex'\) and holds no"):
            open_run(tmp_path, is_resume=is_resume)
    assert contents(tmp_path) == {"thesis.tex": b"x"}
    with pytest.raises(UsageError, match=r"thesis.tex' is a file; --out names a folder"):
        open_run(tmp_path / "thesis.tex")


def test_locks_of_others_are_left_alone(tmp_path: Path) -> None:
    words = r"lock.json' is not (valid JSON|of a training run)"
    for text in ["{", "[]", '{"format": 1, "envs": []}', '{"format": 9}']:
        (tmp_path / "lock.json").write_text(text)
        with pytest.raises(UsageError, match=words):
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


TASKS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=23)


@given(tasks=TASKS, size=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_every_rollout_once_and_tasks_together(
    tasks: list[str], size: int, seed: int, epoch: int
) -> None:
    order = DataOrder(tasks, batch_rollouts=size, seed=seed)
    num = order.steps_per_epoch
    batches = [order.batch(step) for step in range(epoch * num, (epoch + 1) * num)]
    flat = [place for batch in batches for place in batch]
    assert sorted(flat) == list(range(len(tasks)))
    assert [len(batch) for batch in batches[:-1]] == [size] * (num - 1) and batches[-1]
    seen = [tasks[place] for place in flat]
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes == len(set(tasks)) - 1


@given(tasks=TASKS, steps=st.permutations(range(6)))
def test_a_step_is_the_same_whatever_was_asked_before(tasks: list[str], steps: list[int]) -> None:
    one, other = (DataOrder(tasks, batch_rollouts=4, seed=3) for _ in range(2))
    in_order = [one.batch(step) for step in range(6)]
    assert [other.batch(step) for step in steps] == [in_order[step] for step in steps]


def test_epochs_and_seeds_order_differently() -> None:
    tasks = list(range(20))
    orders = [DataOrder(tasks, batch_rollouts=20, seed=seed) for seed in (0, 1)]
    found = [order.batch(epoch) for order in orders for epoch in (0, 1)]
    assert len({tuple(batch) for batch in found}) == 4


def test_a_cursor_says_where_the_order_stands() -> None:
    order = DataOrder(["a", "b", "c"], batch_rollouts=2, seed=7)
    assert order.steps_per_epoch == 2
    assert order.cursor(0) == {"epoch": 0, "place": 0, "seed": 7}
    assert order.cursor(5) == {"epoch": 2, "place": 1, "seed": 7}
    order.check({"epoch": 2, "place": 1, "seed": 7}, 5)
    with pytest.raises(UsageError, match=r"of step 5 stands at .*'place': 0.* it is of other data"):
        order.check({"epoch": 2, "place": 0, "seed": 7}, 5)
    with pytest.raises(UsageError, match="there is no rollout to train on"):
        DataOrder([], batch_rollouts=2)


def test_the_first_signal_is_remembered_and_the_second_interrupts(
    subtests: pytest.Subtests,
) -> None:
    for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
        with subtests.test(number=number):
            before = signal.getsignal(number)
            with StopSignals() as stop:
                assert (stop.received, stop.exit_code) == (None, 0)
                signal.raise_signal(number)
                assert (stop.received, stop.exit_code) == (number, code)
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(number)
            assert signal.getsignal(number) is before


def test_the_log_has_more_than_the_console_and_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console.show_logs()
    ours, learner = logging.getLogger("katgym.toy"), logging.getLogger("katgym_trainer.toy")
    with log_to(tmp_path / "train.log"):
        learner.debug("too little")
        learner.info("a checkpoint")
        ours.info("a rollout")
        learner.warning("too large")
    ours.info("later")
    learner.info("later")
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO katgym_trainer.toy: a checkpoint", "INFO katgym.toy: a rollout",
        "WARNING katgym_trainer.toy: too large",
    ]  # fmt: skip
    with log_to(tmp_path / "train.log"):
        learner.info("continued")
    assert len((tmp_path / "train.log").read_text().splitlines()) == 4
    assert logging.getLogger("katgym").level == logging.WARNING
    assert logging.getLogger("katgym_trainer").handlers == []


def test_the_console_shows_warnings_alone() -> None:
    shown: list[str] = []

    class Screen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(record.getMessage())

    console.show_logs()
    logging.getLogger("katgym").addHandler(screen := Screen())
    try:
        with log_to(Path("/dev/null")):
            for name in ("katgym.toy", "katgym_trainer.toy"):
                logging.getLogger(name).info("no")
                logging.getLogger(name).warning("yes")
    finally:
        logging.getLogger("katgym").removeHandler(screen)
    assert shown == ["yes", "yes"]


METRICS = {"train/loss": 1.25, "train/num_tokens": 500.0, "time/step_s": 0.5}


def progress_to(out: io.StringIO, *, line_every_s: float = 0, is_terminal: bool = False) -> Any:
    screen = Console(file=out, width=120, force_terminal=is_terminal or None)
    return TrainProgress(screen, line_every_s=line_every_s)


def test_a_plain_line_says_step_loss_rate_and_time_left() -> None:
    out = io.StringIO()
    with progress_to(out) as progress:
        progress.say("loading [model]")
        progress.step(1, 7201, METRICS)
    assert out.getvalue().splitlines() == [
        "loading [model]",
        "step 1/7201, loss 1.2500, 1,000 tokens/s, 1:00:00 left",
    ]
    out = io.StringIO()
    with progress_to(out) as progress:
        progress.step(1, 1, {})  # nothing is known of it
    assert out.getvalue() == "step 1/1, loss nan, 0 tokens/s, 0:00:00 left\n"


def test_few_lines_are_printed_and_the_last_step_is_and_a_terminal_gets_a_live_one() -> None:
    out = io.StringIO()
    with progress_to(out, line_every_s=100) as progress:
        for step in range(1, 51):
            progress.step(step, 50, METRICS)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("step 50/50, loss 1.2500, ") and line.endswith(" 0:00:00 left")
    with progress_to(out, is_terminal=True) as progress:
        progress.step(1, 4, METRICS)
        progress.step(2, 4, {"train/loss": 0.5})
    assert "step 2/4, loss 0.5000" in out.getvalue()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_held_until_the_block_ends_and_other_errors_pass() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        interrupt()
        interrupt()
        done.append(True)
    assert done == [True]
    with hold_interrupts():
        pass
    with pytest.raises(ZeroDivisionError), hold_interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_whoever_handles_ctrl_c_is_called_once_after_the_block() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with hold_interrupts():
            interrupt()
            interrupt()
            assert calls == []
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_no_interrupts() -> None:
    seen = []

    def run() -> None:
        with hold_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
