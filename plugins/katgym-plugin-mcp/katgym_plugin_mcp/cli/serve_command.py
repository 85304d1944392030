"""Serve one episode of an env over the Model Context Protocol, on standard input and output.

A client gets the env's tools, `begin`, which says what the opening says, and `answer`. Every call
is a turn. Exit code 1: the client left before the end, or infrastructure broke.

example:
  katgym mcp serve katgym/TreasureHunt-v1 --seed 7 --split test
  katgym mcp serve my_env.py:MyEnv --task test-3 --out episode.json
"""

from __future__ import annotations

import argparse
import asyncio
import json

from katgym.cli.options import add_option
from katgym.evaluation.plan import make_single
from katgym.system.atomic_files import write_atomically


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("env", metavar="ENV", help="id or FILE.py:CLASS, with ?name=value&...")
    add_option(parser, "seed", "draws the task and the episode")
    add_option(parser, "task", "play this one")
    add_option(parser, "split", "(the env's first)")
    add_option(parser, "out", "a file for the episode, as JSON: reward, messages, task")


def run(args: argparse.Namespace) -> int:
    """Play until the client leaves; 1 without a reward."""
    env = make_single(args.env)
    from katgym_plugin_mcp.served_env import serve  # the SDK takes a second or two

    options = {"task_id": args.task, "split": args.split}
    outcome = asyncio.run(serve(env, args.env, seed=args.seed, options=options))
    if args.out is not None:
        write_atomically(args.out, f"{json.dumps(outcome, indent=2)}\n".encode())
    return int(outcome["reward"] is None)
