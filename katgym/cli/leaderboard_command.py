"""Rank runs: a table here, and Markdown, HTML and Every Eval Ever JSON in a folder.

Runs are ranked only against runs of the same tasks; what else differs is written beside the table.

example:
  katgym leaderboard runs/oracle runs/smollm2 --out board
  katgym leaderboard runs/* --by mean_reward --organization "Example Lab"
  katgym leaderboard runs/mine --model-id mine=example/my-model
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from katgym import console
from katgym.errors import UsageError
from katgym.evaluation.every_eval_ever import ExportInfo, write_every_eval_ever
from katgym.evaluation.leaderboard import Leaderboard, Measure, build_leaderboard
from katgym.evaluation.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.leaderboard_html import leaderboard_html
from katgym.evaluation.leaderboard_text import leaderboard_markdown, leaderboard_table
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.evaluation.summary import summarize

logger = logging.getLogger(__name__)

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="folders of runs")
    parser.add_argument(
        "--out", type=Path, default=Path("leaderboard"), help="folder (leaderboard)"
    )
    parser.add_argument("--title", default="katgym leaderboard")
    parser.add_argument("--by", default="success_rate", choices=[str(m) for m in Measure])
    parser.add_argument(
        "--success-threshold", type=float, default=1.0, help="reward that counts (1)"
    )
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")
    export = parser.add_argument_group("Every Eval Ever")
    export.add_argument("--organization", default="unspecified", help="who ran the evaluation")
    export.add_argument("--relationship", default="other", choices=RELATIONSHIPS)
    export.add_argument(
        "--model-id", action="append", default=[], metavar="RUN=DEVELOPER/MODEL", dest="model_ids"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table and write the files."""
    locks = {folder: read_lock(folder) for folder in args.runs}
    names = _names(args.runs)
    model_ids = dict(_model_id(text, names.values()) for text in args.model_ids)
    lines = {folder: read_rollouts(folder) for folder in args.runs}
    entries = {
        folder: LeaderboardEntry.from_lock(
            names[folder],
            locks[folder],
            summarize(lines[folder], success_threshold=args.success_threshold),
        )
        for folder in args.runs
    }
    board = build_leaderboard(entries.values(), title=args.title, measure=Measure(args.by))
    if args.json:
        console.print_json({e.run_name: e.summary.to_json() for e in entries.values()})
    else:
        console.stdout.print(leaderboard_table(board))
    _write_pages(args.out, board)
    for folder, entry in entries.items():
        model_id = model_ids.get(entry.run_name) or _model_id_of(locks[folder])
        _export(args, entry, locks[folder], lines[folder], model_id)
    console.stderr.print(f"written: {args.out / 'leaderboard.md'}, .html and every_eval_ever/")
    return 0


def _names(folders: list[Path]) -> dict[Path, str]:
    """Name runs by their folders; more of the path where the last part is not unique."""
    depth = 1
    while True:
        names = {f: "/".join(f.resolve().parts[-depth:]) for f in folders}
        if len(set(names.values())) == len(names):
            return names
        depth += 1
        if depth > max(len(f.resolve().parts) for f in folders):
            raise UsageError("the same run is named twice")


def _write_pages(folder: Path, board: Leaderboard) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "leaderboard.md").write_text(leaderboard_markdown(board), encoding="utf-8")
    (folder / "leaderboard.html").write_text(leaderboard_html(board), encoding="utf-8")


def _export(
    args: argparse.Namespace,
    entry: LeaderboardEntry,
    lock: Mapping[str, Any],
    lines: list[dict[str, Any]],
    model_id: str | None,
) -> None:
    """Write one run in the Every Eval Ever schema, or say why not."""
    if model_id is None:
        logger.warning(
            "%s is not exported: its policy %r names no developer/model; pass --model-id %s=...",
            entry.run_name,
            entry.policy,
            entry.run_name,
        )
        return
    if any(env.mean_reward is None for env in entry.summary.envs.values()):
        logger.warning("%s is not exported: an env has no valid rollout", entry.run_name)
        return
    info = ExportInfo(
        model_id=model_id,
        organization=args.organization,
        evaluator_relationship=args.relationship,
        timestamp_s=int(datetime.fromisoformat(lock["created"]).timestamp()),
        katgym_version=lock["katgym_version"],
        sampling=lock["sampling"],
        plugin_versions={env["env_id"]: env["plugin_version"] for env in lock["envs"]},
    )
    write_every_eval_ever(args.out / "every_eval_ever", lines, entry.summary, info)


def _model_id(text: str, known: Any) -> tuple[str, str]:
    name, mark, model_id = text.partition("=")
    if not mark or name not in known:
        raise UsageError(
            f"--model-id has the form RUN=DEVELOPER/MODEL with a run's name, got {text!r}"
        )
    return name, model_id


def _model_id_of(lock: Mapping[str, Any]) -> str | None:
    """Return `developer/model` as far as the lock tells it."""
    details = lock.get("policy_details", {})
    if details.get("model_id"):
        return str(details["model_id"])
    scheme, _, rest = str(lock["policy"]).partition(":")
    if not rest:
        return f"katgym/{scheme}"  # the built-in baselines
    model = rest.rpartition("#")[2]
    return model if scheme != "scripted" and model.count("/") == 1 else None
