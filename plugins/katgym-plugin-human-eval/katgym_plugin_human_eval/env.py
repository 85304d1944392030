"""The env: one problem, one program, run in a fresh sandbox and judged outside of it.

Not here: the tests (`hidden_tests.py`), what runs in the sandbox (`worker.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import katgym
from katgym.sandbox import SandboxLimits, SandboxSpec, shared_backend
from katgym.sandbox.venvs import ensure_venv
from katgym_plugin_human_eval.hidden_tests import accepts, calls_of, problems, read_values

WORKER = Path(__file__).with_name("worker.py")
HOW_TO_ANSWER = (
    "Complete this Python function. Answer with the whole function, and whatever else it needs, in"
    " one ```python block.\n\n```python\n{prompt}```"
)
MAX_PROGRAM = 20_000
_LIMITS = SandboxLimits(
    cpu_s=2.0, wall_s=60.0, memory_bytes=1 << 30, max_processes=32, output_bytes=1 << 18
)
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class Programs(katgym.Env):
    """HumanEval's problems; sandbox: name of the backend, see `katgym sandbox list`."""

    splits = ("train", "test")
    default_max_turns = 1
    is_deterministic: ClassVar[bool] = False

    def __init__(self, *, sandbox: str = "local", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sandbox_name = sandbox

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(
                task_id=name,
                prompt=HOW_TO_ANSWER.format(prompt=problem["prompt"]),
                answer=problem["canonical_solution"],
                data={"problem": dict(problem)},
            )
            for name, problem in problems().items()
            if hashlib.sha256(name.encode()).digest()[0] % 2 == (split == "test")
        ]

    @katgym.scorer()
    async def correct(self) -> bool:
        """Whether the hidden test accepts what the program returns for each of its calls."""
        problem = self.task.data["problem"]
        program = program_of(self.final_answer)
        if not program.strip() or len(program) > MAX_PROGRAM:
            return False
        calls = calls_of(problem)
        output = await self._run(f"{problem['prompt']}\n{program}", problem["entry_point"], calls)
        values = read_values(output, len(calls))
        return values is not None and accepts(problem, values)

    def oracle_action(self) -> str:
        problem = self.task.data["problem"]
        return f"```python\n{problem['prompt']}{self.task.answer}```"

    async def _run(self, program: str, name: str, calls: Sequence[tuple[Any, ...]]) -> str:
        """Return what the worker writes; "" for a program that does not end well."""
        backend = shared_backend(self.sandbox_name)
        # Of a venv the base's packages are hidden: the problems and their solutions are among them.
        python = await asyncio.to_thread(ensure_venv, ())
        sandbox = await backend.create(SandboxSpec(limits=_LIMITS, python=python))
        try:
            given = repr((program, name, list(calls))).encode("utf-8", "replace")
            command = ["python3", "-I", "-c", WORKER.read_text("utf-8")]
            result = await sandbox.exec(command, stdin=given)
        finally:
            await sandbox.kill()
        return result.stdout.decode("utf-8", "replace") if result.ok else ""


def program_of(answer: str) -> str:
    """Return the last block of code of an answer, or all of it if there is none."""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer
