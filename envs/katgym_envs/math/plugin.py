"""Registers the mathematics envs; imports none of them.

Not here: the envs (`arithmetic/`, `problems/`, `code/`), the verifier (`verifier/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `katgym/Arithmetic-v1`, `katgym/MathProblems-v1`, `katgym/MathCode-v1`."""
    register(
        "katgym/Arithmetic-v1",
        entry_point="katgym_envs.math.arithmetic.env:ArithmeticEnv",
        description="Exact expressions in ten levels, with a calculator that runs in parallel.",
    )
    register(
        "katgym/MathProblems-v1",
        entry_point="katgym_envs.math.problems.env:MathProblemsEnv",
        description="Written mathematics problems, shipped or your own, graded by the verifier.",
        extra="math",
    )
    register(
        "katgym/MathCode-v1",
        entry_point="katgym_envs.math.code.env:MathCodeEnv",
        description="The written problems again, with a Python in a sandbox to compute with.",
        extra="math",
    )
