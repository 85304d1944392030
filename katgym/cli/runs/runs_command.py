"""List the runs in a folder: what was played or trained, how far it is, and what came of it.

Success is that of rollouts with a valid reward, over all envs of a run alike.

example:
  katgym runs
  katgym runs runs --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.evaluation.plan import env_text
from katgym.evaluation.run_folders import RUNS, find_runs
from katgym.evaluation.run_state import RunState, policy_text
from katgym.evaluation.statistics.number_text import NONE, number_text
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.system import read_journal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run.

    Example:
        RunRow(folder="runs/a", kind="eval", policy="oracle", envs=["katgym/Arithmetic-v1"],
               state="finished", success=1.0, begun="2026-03-01T10:00:00+00:00")
    """

    folder: str
    kind: str
    """`eval`, or what is trained: `sft`, `rft`, `rl`; "" of one that cannot be read."""
    policy: str
    """The URI of who played, or the model that is trained."""
    envs: list[str]
    state: str
    """`finished`, how far it is, or why it cannot be read."""
    success: float | None
    begun: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER",
        help="where to look, in the folders below too (runs, or here where there is none)",
    )  # fmt: skip
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the list, the latest run first."""
    folder: Path = args.folder or (RUNS if RUNS.is_dir() else Path())
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is no folder")
    rows = sorted(map(_read, find_runs(folder)), key=lambda row: row.begun, reverse=True)
    if args.json:
        console.print_json([asdict(row) for row in rows])
    elif rows:
        cells = [
            [
                row.folder, row.kind, row.policy, ", ".join(row.envs), row.state,
                NONE if row.success is None else number_text(row.success),
                row.begun[:16].replace("T", " "),
            ]
            for row in rows
        ]  # fmt: skip
        header = ["run", "kind", "policy", "envs", "state", "success", "begun"]
        console.print_rows(cells, header=header, right=["success"])
    else:
        console.stderr.print(f"no run in {folder}")
    return 0


def _read(folder: Path) -> RunRow:
    try:
        lock = read_lock(folder)
        return _evaluation(folder, lock) if "envs" in lock else _training(folder, lock)
    except (UsageError, KeyError, TypeError, AttributeError) as e:
        why = f"cannot be read: {e}"
        return RunRow(
            folder=str(folder), kind="", policy="", envs=[], state=why, success=None, begun=""
        )


def _evaluation(folder: Path, lock: Mapping[str, Any]) -> RunRow:
    rollouts = read_rollouts(folder)
    summaries = summarize(rollouts, num_resamples=1).envs.values()
    rates = [env.success_rate for env in summaries if env.success_rate is not None]
    return RunRow(
        folder=str(folder),
        kind="eval",
        policy=policy_text(lock),
        envs=[env_text(env["env_id"], env["kwargs"]) for env in lock["envs"]],
        state=str(RunState.of(folder, lock, rollouts)),
        success=sum(rates) / len(rates) if rates else None,
        begun=lock["created"],
    )


def _training(folder: Path, lock: Mapping[str, Any]) -> RunRow:
    """Return the row of a run of `katgym train`; the last evaluation is its success."""
    told = lock["run"]
    steps = [line["step"] for line in read_journal(folder / "metrics.jsonl")]
    rates = [line["success"] for line in read_journal(folder / "eval.jsonl") if "success" in line]
    return RunRow(
        folder=str(folder),
        kind=told["kind"],
        policy=told["model"]["path"],
        envs=[env["id"] for env in told.get("envs", ())],
        state="finished" if (folder / "model").is_dir() else f"{len(steps)} steps were taken",
        success=rates[-1] if rates else None,
        begun=lock["created"],
    )
