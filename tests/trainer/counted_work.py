"""How much Python a call executes, which no machine decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def num_instructions(work: Callable[[], object]) -> int:
    """Return how many bytecode instructions are executed; what libraries do in C is none."""
    num = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        num += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return num
