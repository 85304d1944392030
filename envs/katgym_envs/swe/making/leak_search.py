"""Looks through a real sandbox for what an agent must not find: the fix, hidden tests, copies.

The whole file system is searched: workspace, interpreter, venv, `/tmp`, the home folder. Not here:
what else makes a task unsound (`task_check.py`).

It finds text as it is. Text that is compressed or encoded goes unnoticed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from katgym.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.parse_source import parse_source

_MIN_LETTERS = 24
"""Shorter lines stand in too many files to mean anything."""
_MAX_NEEDLES = 40
_MAX_SHOWN = 3
_LIMITS = SandboxLimits(wall_s=300.0, output_bytes=4 << 20)
_SKIPPED = ("proc", "sys", "dev")


async def search_sandbox(backend: SandboxBackend, task: GradedTask) -> list[str]:
    """Return what was found, as problems."""
    spec = SandboxSpec(
        layers=() if task.workspace.layer is None else (task.workspace.layer,),
        workdir=task.env.workdir,
        env=dict(task.env.env),
        python=task.workspace.python,
        limits=_LIMITS,
    )
    async with await backend.create(spec) as sandbox:
        problems = await _search_text(sandbox, task)
        return problems + await _search_copies(sandbox, task)


async def _search_text(sandbox: Sandbox, task: GradedTask) -> list[str]:
    needles = {**_gold_needles(task), **_test_needles(task)}
    if not needles:
        return []
    excluded = [f"--exclude-dir={name}" for name in _SKIPPED]
    command = ["grep", "-raoHIF", "--no-messages", *excluded, "-f", "-", "/"]
    patterns = "\n".join(list(needles)[:_MAX_NEEDLES]).encode()
    result = await sandbox.exec(command, stdin=patterns, cwd="/")
    if result.exit_code not in (0, 1, 2) or result.is_timed_out:
        return [f"the sandbox could not be searched: {result.text()[-200:]}"]
    problems = []
    for line in result.stdout.decode("utf-8", "replace").splitlines():
        path, _, found = line.partition(":")
        kind = needles.get(found)
        if kind is not None:
            problems.append(f"{kind} can be read in {path!r}: {found!r}")
    return sorted(set(problems))[:_MAX_SHOWN]


async def _search_copies(sandbox: Sandbox, task: GradedTask) -> list[str]:
    """Look for files that are named like the changed ones, anywhere but in their place."""
    problems = []
    for path in task.hidden.gold_files:
        relative = _below_python_path(path, task.env.python_path)
        pruned = [word for name in _SKIPPED for word in ("-path", f"/{name}", "-prune", "-o")]
        command = ["find", "/", *pruned, "-path", f"*/{relative}", "-print"]
        result = await sandbox.exec(command, cwd="/")
        own = f"{task.env.workdir}/{path}"
        found = [p for p in result.stdout.decode("utf-8", "replace").splitlines() if p and p != own]
        problems += [f"another copy of {relative!r} is at {p!r}" for p in found[:_MAX_SHOWN]]
    return problems


def _gold_needles(task: GradedTask) -> dict[str, str]:
    """Return lines that only gold has; none that the base state has, too."""
    base = b"\n".join(task.base_files.values()).decode("utf-8", "replace")
    known = {line.strip() for line in base.splitlines()}
    found: dict[str, str] = {}
    for path, content in task.hidden.gold_files.items():
        before = task.base_files.get(path, b"").decode("utf-8", "replace").splitlines()
        for line in content.decode("utf-8", "replace").splitlines():
            text = line.strip()
            if line not in before and text not in known and len(text) >= _MIN_LETTERS:
                found[text] = "a line of the fix"
    return found


def _test_needles(task: GradedTask) -> dict[str, str]:
    """Return lines of the hidden test functions that the base state does not have."""
    base = b"\n".join(task.base_files.values()).decode("utf-8", "replace")
    known = {line.strip() for line in base.splitlines()}
    found: dict[str, str] = {}
    for text in _hidden_lines(task.hidden):
        if text not in known and len(text) >= _MIN_LETTERS:
            found[text] = "a line of a hidden test"
    return found


def _hidden_lines(hidden: HiddenTests) -> list[str]:
    """Return the lines of the functions that hold tests to fix."""
    to_fix = set(hidden.fail_to_pass)
    wanted: dict[str, set[str]] = {}
    for function in hidden.functions:
        if to_fix & set(function.node_ids()):
            wanted.setdefault(function.path, set()).add(function.qualname.split("::")[-1])
    return [
        line
        for path, names in wanted.items()
        for line in _function_lines(hidden.files, path, names)
    ]


def _function_lines(files: Mapping[str, bytes], path: str, names: set[str]) -> list[str]:
    source = files.get(path, b"")
    lines = source.decode("utf-8", "replace").splitlines()
    found: list[str] = []
    for node in ast.walk(parse_source(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in names:
            found += [text.strip() for text in lines[node.lineno : node.end_lineno]]
    return found


def _below_python_path(path: str, python_path: tuple[str, ...]) -> str:
    for root in sorted(python_path, key=len, reverse=True):
        prefix = root.strip("./") + "/"
        if prefix != "/" and path.startswith(prefix):
            return path[len(prefix) :]
    return path
