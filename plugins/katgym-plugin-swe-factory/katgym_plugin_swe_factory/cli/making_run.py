"""Run of a command that makes a set: Ctrl-C, the report, the exit code.

Not here: the commands (`make_command.py`, `from_prs_command.py`), making (`making/set_maker.py`).
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.sandbox import SandboxBackend
from katgym_envs.swe.cli.task_arguments import open_backend

if TYPE_CHECKING:
    from katgym_plugin_swe_factory.making.set_maker import (
        CandidateSource,
        MakeResult,
        Note,
        Observer,
    )


def run_making(
    open_source: Callable[[SandboxBackend], CandidateSource[Any, Any]],
    args: argparse.Namespace,
    *,
    kind: str,
    observe: Observer,
    note: Note = lambda text: None,
) -> int:
    """Make the set and print what came of it; return the exit code.

    kind: what candidates are called, in the plural.
    """
    try:
        result = asyncio.run(_make(open_source, args, observe, note))
    except KeyboardInterrupt:
        console.stderr.print(f"stopped; the same command goes on in {str(args.out)!r}")
        return 130
    splits = Counter(row.katgym.split for row in result.rows)
    if args.json:
        console.print_json(
            {
                "out": str(args.out),
                "tasks": list(result.tasks),
                "splits": splits,
                "refused": result.refusals,
                "left_out": dict(result.left_out),
            }
        )
    else:
        total = len(result.decisions)
        lines = [f"{len(result.rows)} tasks of {total} {kind} in {str(args.out)!r}"]
        lines += [f"  {num:6} in split {split}" for split, num in sorted(splits.items())]
        lines += [f"  {num:6} refused: {outcome}" for outcome, num in result.refusals.items()]
        lines += [f"  left out: {name}: {why}" for name, why in result.left_out.items()]
        console.stdout.print("\n".join(lines), soft_wrap=True)
    return 0 if result.rows and not result.num_faults else 1


async def _make(
    open_source: Callable[[SandboxBackend], CandidateSource[Any, Any]],
    args: argparse.Namespace,
    observe: Observer,
    note: Note,
) -> MakeResult[Any, Any]:
    from katgym_plugin_swe_factory.making.set_maker import make_set

    async with aclosing(open_backend(args)) as backend:
        return await make_set(await asyncio.to_thread(open_source, backend), observe, note)
