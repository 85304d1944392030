"""Wait until a vLLM server answers that it is ready, then show what it is.

For servers that something else starts, as a container or a scheduler. Policies reach it as
`vllm:URL#MODEL`.

example:
  katgym vllm attach http://gpu-box:8000 --timeout 600
"""

from __future__ import annotations

import argparse

from katgym.cli.options import add_option
from katgym.cli.vllm.status_command import show
from katgym.vllm_server.status import attach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("url", metavar="URL", help="as in http://localhost:8000")
    wait = "time to wait for it (300)"
    add_option(parser, "timeout", wait, type=float, metavar="SECONDS", default=300.0)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Wait and print; 1 when it is not ready in time."""
    return show(attach(args.url, timeout_s=args.timeout), is_json=args.json)
