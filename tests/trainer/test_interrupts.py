"""Ctrl-C is held back, not lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from katgym_trainer.saving.interrupts import hold_interrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_block_ends_first() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        interrupt()
        interrupt()
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_is_raised_and_errors_pass() -> None:
    with hold_interrupts():
        pass
    with pytest.raises(ZeroDivisionError), hold_interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_whoever_handles_it_is_called_once() -> None:
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


def test_other_threads_run_as_they_are() -> None:
    seen = []

    def run() -> None:
        with hold_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
