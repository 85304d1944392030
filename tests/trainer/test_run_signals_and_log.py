"""Signals end a run between steps; its log file has what the console need not show."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest

from katgym import console
from katgym_trainer.runs.process.run_log import log_to
from katgym_trainer.runs.process.stop_signals import StopSignals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_remembered_and_the_second_interrupts(
    number: signal.Signals, code: int
) -> None:
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
        "INFO katgym_trainer.toy: a checkpoint",
        "INFO katgym.toy: a rollout",
        "WARNING katgym_trainer.toy: too large",
    ]
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
