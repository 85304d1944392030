"""What a run frees is kept for its next step."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import sys
import threading

import torch

from katgym_trainer.runs.process.freed_memory import keep_freed_memory

if "keep" in sys.argv:
    print(keep_freed_memory())

SIZES = (10, *[1] * 40)
# one that is never kept of itself, and more than a heap of a thread holds

def work():
    for step in range(24):
        tensors = [torch.ones(n << 20) for n in SIZES]
        del tensors
        if step == 18:  # at first more is asked for, as small blocks lie between
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if "thread" in sys.argv:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


def told(*args: str, **env: str) -> list[str]:
    """Return the lines the script prints."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args],
        capture_output=True, text=True, check=True, env={**os.environ, **env},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_freed_blocks_are_not_asked_for_again(where: str) -> None:
    is_kept, num_faults = told("keep", where)
    assert is_kept == "True"
    assert int(num_faults) < 1000  # 10,240 and more if nothing is done


@pytest.mark.slow
def test_what_the_environment_says_stays() -> None:
    assert told("keep", MALLOC_TRIM_THRESHOLD_="100000")[0] == "False"
