"""Wait until a vLLM server answers that it is ready, then show what it is.

For servers that something else starts, as a container or a scheduler. Policies reach it as
`vllm:URL#MODEL`.

example:
  katgym vllm attach http://gpu-box:8000 --timeout 600
"""

from __future__ import annotations

import argparse

from katgym.cli.vllm_server.status_command import show
from katgym.vllm_server.status import attach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("url", metavar="URL", help="as in http://localhost:8000")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for it (300)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Wait and print; 1 when it is not ready in time."""
    return show(attach(args.url, timeout_s=args.timeout), is_json=args.json)
