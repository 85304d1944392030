r"""`katgym/MathCode-v1`: the problems of `MathProblems-v1`, and a Python in a sandbox to work with.

Not here: problems and verification (`problems/`, `verifier/`), the sandbox (`katgym.sandbox`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action, Message
from katgym.environment.tool_output import readable_text, shorten
from katgym.sandbox import Sandbox, SandboxLimits, SandboxSpec, shared_backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.math.problems.env import MathProblemsEnv

_OUTPUT_CHARS = 8_000
_LIMITS = SandboxLimits(wall_s=20.0, memory_bytes=1 << 30, max_processes=32, output_bytes=1 << 16)


class MathCodeEnv(MathProblemsEnv):
    """One problem per episode; `python` runs programs, a message without calls answers."""

    default_max_turns: ClassVar[int] = 8
    is_deterministic: ClassVar[bool] = False

    def __init__(
        self,
        *,
        sandbox: str = "local",
        packages: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Prepare an env; nothing is started before `reset`.

        sandbox: name of the backend, see `katgym sandbox list`.
        packages: pinned requirements (`"sympy==1.14.0"`) the programs may import beside the
            standard library; installed once into a cached venv, which needs a package index.
        kwargs: those of `MathProblemsEnv` and `katgym.Env`.
        """
        super().__init__(**kwargs)
        self.sandbox_name = sandbox
        self.packages = tuple(packages)
        self._sandbox: Sandbox | None = None
        self.num_programs = 0

    async def setup(self) -> None:
        """Start the episode's sandbox."""
        backend = shared_backend(self.sandbox_name)
        has_python = "python" in (await backend.enforcement()).capabilities
        # Of a venv the base's packages are hidden: katgym and its gold answers may be among them.
        python = await asyncio.to_thread(ensure_venv, self.packages) if has_python else None
        self.num_programs = 0
        self._sandbox = await backend.create(SandboxSpec(limits=_LIMITS, python=python))

    async def teardown(self) -> None:
        """End the sandbox with everything in it."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()

    def opening(self) -> str:
        return (
            f"{super().opening()}\nYou may first run programs with the `python` tool; only what"
            " they print comes back."
        )

    @katgym.tool(timeout_s=60.0)
    async def python(self, code: str) -> str:
        """Run a Python 3 program in a fresh process and return what it printed.

        Files written to the working directory stay for the next call; variables do not. There is
        no network. A program is stopped after 20 seconds.

        Args:
            code: The whole program; use print() to see values.
        """
        assert self._sandbox is not None
        self.num_programs += 1
        result = await self._sandbox.exec(["python3", "-"], stdin=code.encode("utf-8", "replace"))
        text = shorten(readable_text(result.text()), _OUTPUT_CHARS)
        if result.is_timed_out:
            return f"{text}\n[stopped after {result.wall_s:.0f} s ({result.limit_hit})]"
        if result.is_out_of_memory:
            return f"{text}\n[stopped: out of memory]"
        if result.exit_code != 0:
            ended = f"exit code {result.exit_code}" if result.signal is None else "a signal"
            return f"{text}\n[ended with {ended}]"
        return text or "[no output]"

    async def regrade(
        self, task: katgym.Task, messages: Sequence[Message], artifacts: Mapping[str, Any]
    ) -> float | None:
        """Grade the last answer, which needs no sandbox."""
        self.task, self.messages = task, list(messages)
        return (await self.rubric.score(self)).value

    @katgym.scorer(weight=0.0, low=0.0)
    def programs(self) -> int:
        """How many programs were run."""
        return self.num_programs

    def oracle_action(self) -> Action:
        """Answer with the gold answer."""
        return rf"\boxed{{{self.task.answer}}}"

    def random_action(self, rng: random.Random) -> Action:
        """Run a small program, or answer with a small integer."""
        if rng.random() < 0.5:
            code = f"print({rng.randint(-10, 100)} + {rng.randint(-10, 100)})"
            return katgym.assistant("", [("python", {"code": code})])
        return rf"\boxed{{{rng.randint(-10, 100)}}}"
