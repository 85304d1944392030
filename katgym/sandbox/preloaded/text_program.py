"""Runs a program that comes as text in a warm interpreter: a function for `Sandbox.call`.

    spec = SandboxSpec(python=python, preload=("pytest", TEXT_PROGRAM))
    result, reported = await sandbox.call(RUN, pack_program(source, "main", argument))

The program defines the named function, which gets what `Sandbox.call` gives: argument and report.
Standard library only: the launcher loads this module into the task's interpreter. Not here: what
the programs do (`katgym_envs.swe.test_run`).
"""

from __future__ import annotations

import marshal
import struct
from importlib.util import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TEXT_PROGRAM = "katgym.sandbox.preloaded.text_program"
RUN = f"{TEXT_PROGRAM}:run"
_LENGTHS = struct.Struct("!IIII")


def pack_program(source: str, function: str, argument: bytes) -> bytes:
    """Return the argument of `run`: the program as text and, for an equal Python, as byte code."""
    text, name = source.encode(), function.encode()
    code = MAGIC_NUMBER + marshal.dumps(compile(source, "<program>", "exec", dont_inherit=True))
    return _LENGTHS.pack(len(text), len(code), len(name), 0) + text + code + name + argument


def run(packed: bytes, report: Callable[[bytes], None]) -> int | None:
    """Load the packed program and call its function."""
    text_len, code_len, name_len, _ = _LENGTHS.unpack_from(packed)
    ends = [_LENGTHS.size + text_len, _LENGTHS.size + text_len + code_len]
    code = packed[ends[0] : ends[1]]
    name = packed[ends[1] : ends[1] + name_len].decode()
    # The byte code is katgym's own, made in the same call; it spares the child compiling.
    if code.startswith(MAGIC_NUMBER):
        program = marshal.loads(code[len(MAGIC_NUMBER) :])
    else:
        program = compile(packed[_LENGTHS.size : ends[0]], "<program>", "exec")
    names: dict[str, object] = {"__name__": "katgym_program"}
    exec(program, names)
    function: Callable[[bytes, Callable[[bytes], None]], int | None] = names[name]  # type: ignore[assignment]
    return function(packed[ends[1] + name_len :], report)
