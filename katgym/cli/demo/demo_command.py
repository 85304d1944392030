"""The demo: a small language model plays four environments, beside solution and chance.

Not here: the training demo, which the trainer adds as `katgym demo train`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from katgym import console
from katgym.cli.demo.needs import HF, WEIGHTS, offer
from katgym.cli.demo.typed_commands import CommandFailed, copy_files, run_command, show_page

RUNS = Path("runs/demo")
POLICIES = ("oracle", "random", "smollm2")
EASY_SAMPLING = ("--max-tokens", "48", "--temperature", "0.3")
HARD_SAMPLING = ("--max-tokens", "96", "--temperature", "0.7", "--set", "limits.max_turns=4")
FILE = "apples.py"
"""An environment by its file, which is copied beside the runs: something to read and change."""
HARD = ("katgym/Arithmetic-v1?level=1", "katgym/TreasureHunt-v1?level=1")
REPAIR = "katgym/SWE-v0?tasks=toy"
"""Repairs of the toy repository: real sandboxes, hidden tests, canaries; no network."""

ABOUT = """\
SmolLM2-135M, a language model of 135 million parameters, plays on this machine: word problems
about apples, some of which it can do, and tools, treasure hunts and repairs of a program, which
it cannot. Beside it play the environments' own solutions (oracle) and chance (random). Everything
is real: each token is sampled, each reward is verified. About four minutes on two cores; a second
run goes on where the first one stopped. All of it goes into {runs}.
"""
NEXT = """
Try next:
  katgym view {runs}/smollm2-apples-1        # what it said, in the terminal
  katgym eval '{runs}/apples.py:Apples?level=3' --policy smollm2 --tasks 8 --out {runs}/mine
  katgym play 'katgym/TreasureHunt-v1?level=2'      # do it yourself
  katgym demo train                                 # watch a new model learn"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Have a small language model play four environments; a board of what it can and cannot do.

    Without a subcommand it plays; `katgym demo train` trains. What is missing is named, and fetched
    if you agree. The same command goes on with a demo that was stopped.

    example:
      katgym demo
      katgym demo --yes
    """
    add_demo_arguments(parser)
    parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND")
    parser.set_defaults(run=run)


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every demo."""
    parser.add_argument("--yes", action="store_true", help="fetch what is missing without asking")


def run(args: argparse.Namespace) -> int:
    """Play everything, show the board; return the exit code."""
    console.stdout.print(ABOUT.format(runs=RUNS), soft_wrap=True)
    offer((HF, WEIGHTS), is_agreed=args.yes)
    began = time.perf_counter()
    copy_files("katgym.cli.demo", RUNS, FILE)
    try:
        folders = [str(folder) for policy in POLICIES for folder in play(policy)]
        pages = rank(folders)
        run_command("view", str(RUNS / "smollm2-apples-1"), "--html")
    except CommandFailed as e:
        return int(e.args[0])
    console.stdout.print(f"\n{time.perf_counter() - began:.0f} s. The boards:")
    for page in pages:
        show_page(page)
    console.stdout.print(NEXT.format(runs=RUNS), soft_wrap=True)
    return 0


def rank(folders: Sequence[str]) -> list[Path]:
    """Rank the runs, what the model can do last; return the pages."""
    pages = []
    for name, is_easy in (("board-hard", False), ("board-apples", True)):
        runs = [folder for folder in folders if ("apples" in folder) is is_easy]
        out = RUNS / name
        run_command("leaderboard", *runs, "--out", str(out), "--set", "title=katgym demo")
        pages.append(out / "leaderboard.html")
    return pages


def play(policy: str) -> list[Path]:
    """Let a policy play everything; return the runs' folders."""
    apples = f"{RUNS / FILE}:Apples?level="
    plan: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("apples-1", (f"{apples}1",), ("--tasks", "16", "--group-size", "4", *EASY_SAMPLING)),
        ("apples-2", (f"{apples}2",), ("--tasks", "16", *EASY_SAMPLING)),
        ("tools", HARD, ("--tasks", "6", *HARD_SAMPLING)),
    ]
    if sys.platform == "linux":  # elsewhere there is no sandbox without a Docker Engine
        plan.append(("repairs", (REPAIR,), ("--tasks", "3", *HARD_SAMPLING)))
    folders = []
    for name, envs, options in plan:
        folders.append(RUNS / f"{policy}-{name}")
        where = ("--policy", policy, "--out", str(folders[-1]), "--concurrency", "64")
        run_command("eval", *envs, *where, *options)
    return folders
