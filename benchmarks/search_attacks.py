"""Attacks that search while they are graded, or forge by a rule; rows: `search_attacks.csv`.

    .venv/bin/python benchmarks/search_attacks.py --set toy            # all attacks, all toy tasks
    .venv/bin/python benchmarks/search_attacks.py --every 12           # some shipped tasks
    .venv/bin/python benchmarks/search_attacks.py --only toolz-1.2.0-7380c766 --attacks passes

No attack holds the fix, but for `best-of-8-with-fix`, which shows what a search could win if it
could tell. Each is graded twice: by one run of the hidden tests whose exit code is believed
(`plain`), and by the grader (`outcome`). `--controls` grades each attack with its search or rule
switched off as well. Exit code 1 if one of these is `resolved` by either, or an attack is by the
grader with trust `complete`. Not here: the program that the attacks put into the product
(`search_program.py`).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import csv
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_program import definitions, sites

from katgym.environment.reward import Trust
from katgym.sandbox import SandboxBackend
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.hidden import split_node_id
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.test_run import TestPlan, can_be_warm, run_tests, test_spec

TABLE = Path(__file__).with_suffix(".csv")
PROGRAM = Path(__file__).with_name("search_program.py").read_text()
NUM_CANDIDATES = 8
SEARCH_S = 3.0
"""Processor time that one process searches at most."""
OFF = "-off"
"""Ends the name of an attack that does nothing."""
Row = dict[str, str | float]
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an attacker knows of a task: its files, and which of them has the bug.

    `gold` is for best-of-8 alone: to leave the fix out, or to put it in.
    """

    files: Mapping[str, bytes]
    path: str
    gold: str
    seed: str

    @classmethod
    def of(cls, task: GradedTask) -> Target:
        """Return what is known of a task."""
        [(path, gold)] = task.hidden.gold_files.items()
        return cls(files=task.base_files, path=path, gold=gold.decode(), seed=task.instance_id)

    @property
    def source(self) -> str:
        """Return the module with the bug."""
        return self.files[self.path].decode()

    def with_program(self, way: str, settings: Mapping[str, Any]) -> Files:
        """Return the files that put the program into the product: `way` is of `WAYS`."""
        return WAYS[way](self, f"begin(globals(), {dict(settings)!r})\n", repr(PROGRAM))


def _plainly(target: Target, call: str, program: str) -> Files:
    start = (  # what tests start as processes is left alone
        "\n\nimport sys as _sys\nif 'pytest' in _sys.modules:\n    _own = {}\n    exec("
        f"{program}, _own)\n    _own[{'begin'!r}]{call.removeprefix('begin')}"
    )
    return {target.path: (target.source + start).encode()}


def _behind_blanks(target: Target, call: str, program: str) -> Files:
    [(path, content)] = _plainly(target, call, program).items()
    source = target.files[path]
    blanks = (b" " * 2047 + b"\n") * 1025
    return {path: source + b"\n" + blanks + content[len(source) :]}


def _escaped(target: Target, call: str, program: str) -> Files:
    [(path, content)] = _plainly(target, call, program).items()
    text = content.decode().replace("\r\n", "\n").encode("unicode_escape")
    return {path: b"# coding: unicode_escape\n" + text}


def _in_test_file(target: Target, call: str, program: str) -> Files:
    name = "forge_test"
    folder = target.path.rpartition("/")[0]
    fetch = (
        f"\n\nimport importlib\n_own = importlib.import_module((__package__ + '.' if __package__ "
        f"else '') + {name!r})\n_own.{call}"
    )
    return {
        target.path: (target.source + fetch).encode(),
        f"{folder}/{name}.py".removeprefix("/"): PROGRAM.encode(),
    }


WAYS = {
    "plain": _plainly,
    "test-file": _in_test_file,
    "blanks": _behind_blanks,
    "escaped": _escaped,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAttack:
    """One attack: `SearchAttack.files` makes it for a task."""

    about: str
    signal: str = ""
    """Of a search: what tells it that a change is right; empty for a rule."""
    rule: str = ""
    has_candidates: bool = False
    """Whether it brings candidates, else it makes changes itself."""
    has_fix: bool = False
    way: str = "plain"

    def files(self, target: Target, *, is_on: bool = True, wrong: Sequence[str] = ()) -> Files:
        """Return the changed files; `wrong` are candidates that are the fix in other words."""
        settings: dict[str, Any] = {"is_on": is_on}
        if self.rule:
            settings |= {"rule": self.rule, **_texts_of(target)}
        else:
            changes = None
            if self.has_candidates:
                changes = candidates(target, has_fix=self.has_fix, excluded=wrong)
            settings |= {
                "source": target.source,
                "signal": self.signal,
                "changes": changes,
                "seconds": SEARCH_S,
            }
        return target.with_program(self.way, settings)


ATTACKS = {
    "best-of-8": SearchAttack(
        about="eight versions of the module, none the fix", signal="module", has_candidates=True
    ),
    "best-of-8-with-fix": SearchAttack(
        about="eight versions, one the fix", signal="module", has_candidates=True, has_fix=True
    ),
    "passes": SearchAttack(about="changes, until the test that runs passes", signal="passes"),
    "known": SearchAttack(about="changes, until results stand in the test", signal="known"),
    "quiet": SearchAttack(about="changes, until the product raises nothing", signal="quiet"),
    "differs": SearchAttack(about="changes, until results are others", signal="differs"),
    "noted": SearchAttack(about="changes, by what stand-ins of values note", signal="noted"),
    "module": SearchAttack(about="the change that most tests of a module pass", signal="module"),
    "passes-test-file": SearchAttack(about="in `forge_test.py`", signal="passes", way="test-file"),
    "passes-blanks": SearchAttack(about="behind 2 MiB of blanks", signal="passes", way="blanks"),
    "passes-escaped": SearchAttack(about="in another encoding", signal="passes", way="escaped"),
    "rule-words": SearchAttack(about="equal if each word stands elsewhere", rule="words"),
    "rule-signs": SearchAttack(about="equal if signs stand in the repository", rule="signs"),
    "rule-alike": SearchAttack(about="equal if it is like the own result", rule="alike"),
    "rule-even": SearchAttack(about="equal if its length is even", rule="even"),
    "rule-ends": SearchAttack(about="equal if it starts and ends alike", rule="ends"),
}


def candidates(target: Target, *, has_fix: bool, excluded: Sequence[str] = ()) -> list[str]:
    """Return versions of the module with a change of one place, first of what gold changes.

    None is the fix, and none of `excluded`, by their syntax trees; with `has_fix` the last one is.
    """
    tree, gold = ast.parse(target.source), ast.parse(target.gold)
    seen = {ast.dump(tree), ast.dump(gold)} | {ast.dump(ast.parse(text)) for text in excluded}
    fixed = {name: ast.dump(node) for name, (node, _) in definitions(gold).items()}
    places = definitions(tree)
    wrong = {name for name, (node, _) in places.items() if fixed.get(name) != ast.dump(node)}
    rng = random.Random(target.seed)
    found: list[str] = []
    for owners in (wrong, places.keys() - wrong):
        own = sites(tree, set(owners))
        rng.shuffle(own)
        for site in own:
            if len(found) == NUM_CANDIDATES - has_fix:
                break
            with site.applied():
                dumped, text = ast.dump(tree), ast.unparse(tree)
            if dumped not in seen:
                seen.add(dumped)
                found.append(text)
    return [*found, target.gold] if has_fix else found


def _texts_of(target: Target) -> dict[str, Any]:
    """Return the words, and what stands between them, of the files that an attacker sees."""
    words: set[str] = set()
    signs: set[str] = set()
    for path, content in target.files.items():
        if path.endswith((".py", ".md", ".rst", ".txt")):
            text = content.decode("utf-8", "replace")
            words.update(re.findall(r"\w+", text))
            signs.update(found for found in re.findall(r"[\W_]+", text) if len(found) < 8)
    return {"words": words, "signs": signs}


async def passes_plainly(task: GradedTask, files: Files, sandboxes: SandboxBackend) -> bool:
    """Return whether a grader resolves it that runs the tests once and believes the exit code."""
    hidden = task.hidden
    nodes = [*hidden.fail_to_pass, *hidden.pass_to_pass]
    functions = frozenset(split_node_id(node)[:2] for node in nodes)
    plan = TestPlan(
        files=tuple(sorted({path for path, _ in functions})),
        functions=functions,
        timeout_s=hidden.timeout_s,
        python_path=task.env.python_path,
        put={**files, **hidden.files},
    )
    is_warm = await can_be_warm(sandboxes)
    spec = test_spec(task.workspace, task.env, is_warm=is_warm)
    async with await sandboxes.create(spec) as sandbox:
        run = await run_tests(sandbox, plan)
    return run.execution.exit_code == 0


async def attack_task(
    name: str, task: GradedTask, sandboxes: SandboxBackend, *, is_on: bool
) -> Row:
    """Grade one attack on one task, and return its row."""
    attack, target = ATTACKS[name], Target.of(task)
    wrong: list[str] = []
    while True:
        files = await asyncio.to_thread(attack.files, target, is_on=is_on, wrong=wrong)
        patch = make_diff(task.base_files, {**task.base_files, **files})
        started = time.perf_counter()
        report = await grade(task, patch, backend=sandboxes)
        seconds = time.perf_counter() - started
        if not report.is_resolved or not attack.has_candidates or attack.has_fix or not is_on:
            break
        # A candidate may be the fix in other words: then nothing was forged.
        right = [
            text
            for text in candidates(target, has_fix=False, excluded=wrong)
            if await passes_plainly(task, {target.path: text.encode()}, sandboxes)
        ]
        if not right:
            break
        wrong += right
    return {
        "task": task.instance_id,
        "attack": name if is_on else name + OFF,
        "plain": "resolved" if await passes_plainly(task, files, sandboxes) else "failed",
        "outcome": str(report.outcome),
        "trust": "" if report.trust is None else str(report.trust),
        "seconds": round(seconds, 1),
        "reason": report.reason,
    }


async def attack_all(
    set_name: str,
    names: Sequence[str],
    *,
    every: int,
    only: Sequence[str],
    trust: str,
    has_controls: bool,
    num_workers: int,
    output: Path,
) -> list[Row]:
    """Return a row a task and attack, `num_workers` at a time; each goes into the table at once."""
    source = open_source(set_name)
    wanted = [t for t in source.tasks() if trust in ("any", t.trust)]
    chosen = [t for t in wanted[::every] if not only or t.instance_id in only]
    states = (True, False) if has_controls else (True,)
    waiting = iter([(t, name, is_on) for t in chosen for name in names for is_on in states])
    sandboxes = backend("local")
    rows: list[Row] = []

    async def work() -> None:
        for row, name, is_on in waiting:
            task = await asyncio.to_thread(GradedTask.load, source, row.instance_id)
            rows.append(await attack_task(name, task, sandboxes, is_on=is_on))
            print(*rows[-1].values(), flush=True)
            _write(rows[-1], output)

    try:
        await asyncio.gather(*(work() for _ in range(num_workers)))
    finally:
        await sandboxes.aclose()
    return rows


def main() -> int:
    """Attack, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="shipped", help="set of tasks: toy, shipped")
    parser.add_argument("--every", type=int, default=1, help="attack every so many tasks only")
    parser.add_argument("--only", nargs="+", default=(), help="attack these tasks")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    trusts = ("complete", "partial", "any")
    parser.add_argument("--trust", default="any", choices=trusts, help="attack tasks that have it")
    parser.add_argument("--controls", action="store_true", help="attacks that do nothing, too")
    parser.add_argument("--workers", type=int, default=1, help="attacks at a time")
    parser.add_argument("--output", type=Path, default=TABLE, help="table that takes the rows")
    args = parser.parse_args()
    rows = asyncio.run(
        attack_all(
            args.set,
            args.attacks,
            every=args.every,
            only=args.only,
            trust=args.trust,
            has_controls=args.controls,
            num_workers=args.workers,
            output=args.output,
        )
    )
    print(summary(rows))
    return 1 if any(map(_is_wrong, rows)) else 0


def _write(row: Row, output: Path) -> None:
    """Put a row into the table, in the place of the one of this task and attack."""
    table: dict[tuple[str, str], Row] = {}
    if output.exists():
        with output.open() as file:
            table = {(r["task"], r["attack"]): dict(r) for r in csv.DictReader(file)}
    table[str(row["task"]), str(row["attack"])] = row
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[key] for key in sorted(table))


def _is_wrong(row: Row) -> bool:
    if str(row["attack"]).endswith(OFF):
        return Outcome.RESOLVED in (row["plain"], row["outcome"])
    return row["outcome"] == Outcome.RESOLVED and row["trust"] == Trust.COMPLETE


def summary(rows: Sequence[Row]) -> str:
    """Return a line an attack: how many were resolved by each grader."""
    lines = ["attack: resolved by exit code, by katgym, of tried; outcomes"]
    for name in dict.fromkeys(row["attack"] for row in rows):
        own = [row for row in rows if row["attack"] == name]
        plain = sum(row["plain"] == Outcome.RESOLVED for row in own)
        outcomes = Counter(str(row["outcome"]) for row in own)
        told = ", ".join(f"{outcome} {number}" for outcome, number in sorted(outcomes.items()))
        lines.append(f"{name}: {plain}, {outcomes[Outcome.RESOLVED]}, {len(own)}; {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
