"""Looks through a real sandbox for what an agent must not find: the fix, hidden tests, copies.

The whole file system is searched: workspace, interpreter, venv, `/tmp`, the home folder. Not here:
what else makes a task unsound (`task_check.py`).

It finds text as it is. Text that is compressed or encoded goes unnoticed.
"""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from katgym.sandbox import Sandbox, SandboxBackend, SandboxError, SandboxLimits, SandboxSpec
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.hidden import split_node_id
from katgym_envs.swe.parse_source import parse_source
from katgym_plugin_swe_factory.statements.observed_tests import find_function

_MIN_LETTERS = 24
"""Shorter lines stand in too many files to mean anything."""
_MAX_NEEDLES = 40
_MAX_SHOWN = 3
_COPY_SHARE = 0.3
"""Of a gold file's telling lines: a file of the same name with so many of them is a copy."""
_MIN_RELATED, _MIN_SHARED = 2, 3
_LIMITS = SandboxLimits(wall_s=300.0, output_bytes=16 << 20)
_KERNEL = ("proc", "sys", "dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What must not be found of one task."""

    lines: Mapping[str, str]
    """Line without its indentation -> what it is."""
    copies: Mapping[str, frozenset[str]]
    """Path below an import root -> telling lines of gold's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a search came upon: lines and files of the wanted names, with telling lines of those."""

    lines: Mapping[str, tuple[str, ...]]
    files: Mapping[str, frozenset[str]]


class LeakSearch:
    """Searches for several tasks: what all sandboxes have is gone through once."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._wanted: dict[str, Wanted] = {}
        self._shared: dict[str | None, _Found] = {}
        self._lock = asyncio.Lock()

    async def prepare(self, tasks: Iterable[GradedTask]) -> None:
        """Go through the file systems of these tasks, apart from their workspaces."""
        by_python: dict[str | None, list[GradedTask]] = {}
        for task in tasks:
            by_python.setdefault(task.workspace.python, []).append(task)
            self._wanted[task.instance_id] = find_wanted(task)
        for python, group in by_python.items():
            wanted = [self._wanted[task.instance_id] for task in group]
            async with await self._backend.create(_spec(group[0], has_workspace=False)) as sandbox:
                self._shared[python] = await _search(sandbox, wanted, ["/"])

    async def search(self, task: GradedTask) -> list[str]:
        """Return what an agent could find in this task's sandbox, as problems."""
        async with self._lock:
            if task.instance_id not in self._wanted:
                await self.prepare([task])
        wanted = self._wanted[task.instance_id]
        roots = [task.env.workdir, "/tmp", "/home"]
        async with await self._backend.create(_spec(task, has_workspace=True)) as sandbox:
            own = await _search(sandbox, [wanted], roots)
        shared = _find_related(wanted, self._shared[task.workspace.python])
        found = _problems(wanted, shared, task) + _problems(wanted, own, task)
        return found + find_shown_tests(task)


def _spec(task: GradedTask, *, has_workspace: bool) -> SandboxSpec:
    layer = task.workspace.layer
    return SandboxSpec(
        layers=(layer,) if has_workspace and layer is not None else (),
        workdir=task.env.workdir,
        env=dict(task.env.env),
        python=task.workspace.python,
        limits=_LIMITS,
    )


async def _search(sandbox: Sandbox, wanted: Sequence[Wanted], roots: Sequence[str]) -> _Found:
    """Go through some folders once; raises `SandboxError` when that fails."""
    needles = {line for item in wanted for line in item.lines}
    names = sorted({path.rpartition("/")[2] for item in wanted for path in item.copies})
    lines: dict[str, tuple[str, ...]] = {}
    if needles:
        excluded = [f"--exclude-dir={name}" for name in _KERNEL] if roots == ["/"] else []
        command = ["grep", "-rHIFZ", "--no-messages", *excluded, "-f", "-", *roots]
        result = await sandbox.exec(command, stdin="\n".join(sorted(needles)).encode(), cwd="/")
        if result.exit_code not in (0, 1, 2) or result.is_timed_out or result.stdout_omitted:
            raise SandboxError(f"a sandbox could not be searched: {result.text()[-200:]}")
        # grep takes parts of lines as well; a needle is a whole line.
        matches: dict[str, list[str]] = {}
        for item in result.stdout.split(b"\n"):
            place, _, line = item.partition(b"\0")
            text = line.decode("utf-8", "replace").strip()
            if text in needles:
                matches.setdefault(text, []).append(place.decode("utf-8", "replace"))
        lines = {text: tuple(dict.fromkeys(paths)) for text, paths in matches.items()}
    named: list[bytes] = []
    if names:
        pruned = [word for name in _KERNEL for word in ("-path", f"/{name}", "-prune", "-o")]
        chosen = [word for name in names for word in ("-o", "-name", name)][1:]
        command = ["find", *roots, *pruned, "-type", "f", "(", *chosen, ")", "-print0"]
        named = (await sandbox.exec(command, cwd="/")).stdout.split(b"\0")
    read = {path for paths in lines.values() for path in paths}
    read |= {path.decode("utf-8", "replace") for path in named if path}
    files: dict[str, frozenset[str]] = {}
    for path in sorted(read):
        shown = await sandbox.exec(["head", "-c", "4000000", path], cwd="/")
        files[path] = _telling(shown.stdout)
    return _Found(lines=lines, files=files)


def find_wanted(task: GradedTask) -> Wanted:
    """Return the lines that only gold or the hidden tests have, and gold's files."""
    base = b"\n".join(task.base_files.values()).decode("utf-8", "replace")
    known = {line.strip() for line in base.splitlines()}
    lines: list[tuple[str, str]] = []
    for content in task.hidden.gold_files.values():
        gold = content.decode("utf-8", "replace").splitlines()
        lines += [(line.strip(), "a line of the fix") for line in gold]
    # Of the tests: all functions of a hidden test's name, inherited ones among them.
    names_of: dict[str, set[str]] = {}
    for test in task.hidden.fail_to_pass:
        path, qualname, _ = split_node_id(test)
        names_of.setdefault(path, set()).add(qualname.split("::")[-1])
    for path, names in names_of.items():
        source = task.hidden.files.get(path, b"")
        shown = source.decode("utf-8", "replace").splitlines()
        for node in ast.walk(parse_source(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in names:
                body = shown[node.lineno : node.end_lineno]
                lines += [(line.strip(), "a line of a hidden test") for line in body]
    needles = {text: kind for text, kind in lines if text not in known and _is_telling(text)}
    return Wanted(
        lines=dict(list(needles.items())[:_MAX_NEEDLES]),
        copies={
            _below_python_path(path, task.env.python_path): _telling(content)
            for path, content in task.hidden.gold_files.items()
        },
    )


def _find_related(wanted: Wanted, found: _Found) -> _Found:
    """Return what was found without lines that stand in foreign files by chance.

    A file is related if it has two of the lines, or some more of the files that hold the fix.
    """
    telling = frozenset().union(*wanted.copies.values())
    counts: Counter[str] = Counter()
    for line in wanted.lines:
        counts.update(found.lines.get(line, ()))
    related = {
        path
        for path, count in counts.items()
        if count >= _MIN_RELATED or len(found.files.get(path, frozenset()) & telling) >= _MIN_SHARED
    }
    lines = {
        line: tuple(path for path in paths if path in related)
        for line, paths in found.lines.items()
    }
    return _Found(lines=lines, files=found.files)


def _problems(wanted: Wanted, found: _Found, task: GradedTask) -> list[str]:
    problems = [
        f"{kind} can be read in {path!r}: {line!r}"
        for line, kind in wanted.lines.items()
        for path in found.lines.get(line, ())
    ][:_MAX_SHOWN]
    for relative, telling in wanted.copies.items():
        own = {f"{task.env.workdir}/{path}" for path in task.hidden.gold_files}
        for path, lines in found.files.items():
            is_named = path.endswith(f"/{relative}") and path not in own
            if is_named and telling and len(telling & lines) >= _COPY_SHARE * len(telling):
                problems.append(f"another copy of {relative!r} is at {path!r}")
    return problems


def _telling(content: bytes) -> frozenset[str]:
    """Return the lines that hardly stand in another file by chance."""
    lines = (line.strip() for line in content.decode("utf-8", "replace").splitlines())
    return frozenset(line for line in lines if _is_telling(line))


def _is_telling(line: str) -> bool:
    return len(line) >= _MIN_LETTERS and not line.startswith(("import ", "from "))


def find_shown_tests(task: GradedTask) -> list[str]:
    """Return hidden test functions that some file of the base state holds whole, as problems.

    Of a parametrized one, body and a row of its table have to be there. A test that a class
    inherits is left out: its function is another class's.
    """
    shown = {
        path: _without_layout(content.decode("utf-8", "replace").splitlines())
        for path, content in task.base_files.items()
    }
    to_fix = set(task.hidden.fail_to_pass)
    problems: list[str] = []
    for function in task.hidden.functions:
        if not to_fix & set(function.node_ids()):
            continue
        source = task.hidden.files.get(function.path, b"")
        module = parse_source(source)
        node = find_function(module, function.qualname)
        if node is None:
            continue
        lines = source.decode("utf-8", "replace").splitlines()[node.lineno : node.end_lineno]
        if any(_is_telling(line.strip()) for line in lines):
            body = _without_layout(lines)
            name = f"{function.path}::{function.qualname}"
            rows = _rows(module, node)
            problems += [
                f"hidden test {name!r} can be read in {path!r}"
                for path, text in shown.items()
                if body in text and (rows is None or _has_any(rows, task.base_files[path]))
            ]
    return problems


def _has_any(rows: frozenset[str], content: bytes) -> bool:
    """Return whether a file has one of these expressions, or is no Python."""
    try:
        module = parse_source(content)
    except (SyntaxError, ValueError):
        return True
    return any(isinstance(n, ast.expr) and ast.unparse(n) in rows for n in ast.walk(module))


def _rows(
    module: ast.Module, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> frozenset[str] | None:
    """Return the rows of the one table that parametrizes a test, as code; None if they are unknown.

    They stand in the decorator, or in a list or tuple of the module.
    """
    tables = [
        decorator.args[1]
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and ast.unparse(decorator.func).endswith("parametrize")
        and len(decorator.args) > 1
    ]
    if len(tables) != 1:
        return None
    table: ast.expr | None = tables[0]
    if isinstance(table, ast.Name):
        given = [
            statement.value
            for statement in module.body
            if isinstance(statement, (ast.Assign, ast.AnnAssign))
            and ast.unparse(_target(statement)) == table.id
        ]
        table = given[-1] if given else None
    if not isinstance(table, (ast.List, ast.Tuple)):
        return None
    return frozenset(ast.unparse(row) for row in table.elts)


def _target(statement: ast.Assign | ast.AnnAssign) -> ast.expr:
    return statement.targets[0] if isinstance(statement, ast.Assign) else statement.target


def _without_layout(lines: Iterable[str]) -> str:
    """Return lines without indentation and blank ones, so that a moved function is found."""
    return "\n" + "".join(f"{text}\n" for line in lines if (text := line.strip()))


def _below_python_path(path: str, python_path: tuple[str, ...]) -> str:
    for root in sorted(python_path, key=len, reverse=True):
        prefix = root.strip("./") + "/"
        if prefix != "/" and path.startswith(prefix):
            return path[len(prefix) :]
    return path
