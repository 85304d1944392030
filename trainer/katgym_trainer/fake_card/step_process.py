"""Steps on cards that are not there, counted in a process of their own.

    for found in count_steps([StepRequest.of_tokens("Qwen/Qwen3-0.6B", 20_480)]):
        print(found.launches if isinstance(found, StepCounts) else found.error)

A guard for CUDA and replaced parts of torch stay out of the caller's process. Not here: the step
(`trained_step.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from katgym.errors import InfrastructureError, KatgymError
from katgym_trainer.fake_card.device_guard import load_device_guard
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_request import StepRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """Why a step cannot be taken.

    Example:
        StepFailure(kind="UsageError", error="cannot load the configuration of model 'Quen'")
    """

    kind: str
    """Class of the exception."""
    error: str


@contextlib.contextmanager
def counting(
    requests: Sequence[StepRequest],
) -> Iterator[Iterator[StepCounts | StepFailure]]:
    """Have a process count steps within; give the counts of each as soon as they are there.

    The counts raise `InfrastructureError` if the process ends before.
    """
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None  # it is a pipe
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            json.dump([dataclasses.asdict(request) for request in requests], stream)
        try:
            yield _read_counts(process, len(requests), errors)
        finally:
            process.kill()


def _read_counts(
    process: subprocess.Popen[str], num_requests: int, errors: IO[str]
) -> Iterator[StepCounts | StepFailure]:
    assert process.stdout is not None  # it is a pipe
    num = 0
    for line in process.stdout:
        num += 1
        found = json.loads(line)
        yield StepFailure(**found) if "error" in found else StepCounts.of(found)
    process.wait()
    if num < num_requests:
        errors.seek(0)
        raise InfrastructureError(
            f"the process that counts steps ended after {num} of {num_requests}, exit code"
            f" {process.returncode}:\n{errors.read()[-2000:]}"
        )


def count_steps(requests: Sequence[StepRequest]) -> Iterator[StepCounts | StepFailure]:
    """Yield the counts of each step as soon as they are there; see `counting`."""
    with counting(requests) as found:
        yield from found


def main() -> None:
    """Read requests from standard input; print a line of JSON for each."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints
    for raw in json.load(sys.stdin):
        found = _find(raw)
        print(json.dumps(dataclasses.asdict(found)), file=out, flush=True)
    os._exit(0)  # device threads of autograd do not end


def _find(raw: dict[str, Any]) -> StepCounts | StepFailure:
    try:
        if "torch" not in sys.modules:
            load_device_guard()
        from katgym_trainer.fake_card.trained_step import count_step  # imports torch

        return count_step(StepRequest.of(raw))
    except Exception as e:
        return StepFailure(kind=type(e).__name__, error=_describe(e))


def _describe(error: Exception) -> str:
    """Return an exception's text, and of others than users' mistakes where it was raised."""
    text = str(error)
    if isinstance(error, KatgymError):
        return text
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{text} @ {where}"


if __name__ == "__main__":
    main()
