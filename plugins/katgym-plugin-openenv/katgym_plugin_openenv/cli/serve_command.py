"""Serve an env by OpenEnv's protocol, over HTTP and WebSocket, an episode for each client.

Clients reset with `seed`, `task_id`, `split` and `max_turns`, and step with an assistant message. A
seed gives the episode that it gives natively. The protocol knows no login: whoever reaches the port
plays, so do not let strangers reach it. Pages in a browser are refused.

example:
  katgym openenv serve katgym/TreasureHunt-v1 --port 8000
  katgym openenv serve my_env.py:MyEnv --port 0 --max-sessions 8
"""

from __future__ import annotations

import argparse

from rich.text import Text

import katgym
from katgym import console
from katgym.cli.options import add_option
from katgym.evaluation.plan import make_single
from katgym.system.serving import serve_app
from katgym_plugin_openenv.server import application


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("env", metavar="ENV", help="id or FILE.py:CLASS, with ?name=value&...")
    add_option(parser, "host", "(127.0.0.1)", default="127.0.0.1")
    add_option(parser, "port", "(8000)", default=8000)
    parser.add_argument(
        "--max-sessions", type=int, default=64, metavar="N", help="episodes at a time (64)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; every episode ends with the server."""
    env = make_single(args.env)
    if args.max_sessions < 1:
        raise katgym.UsageError(f"--max-sessions is >= 1, got {args.max_sessions}")
    env.tasks()  # an env without tasks fails here, not at its first client

    def tell(url: str) -> None:
        console.stdout.print(Text(f"{args.env} by OpenEnv's protocol on {url}"))

    app = application(env, args.env, max_sessions=args.max_sessions)
    serve_app(app, args.host, args.port, started=tell, websockets=True)
    return 0
