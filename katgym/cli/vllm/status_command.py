"""Show what a running vLLM server is: its models, its weights' version, which routes it has.

example:
  katgym vllm status http://localhost:8000
  katgym vllm status http://localhost:8000 --json
"""

from __future__ import annotations

import argparse
import asyncio

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.vllm_server.control import VllmControl
from katgym.vllm_server.status import ServerStatus, attach, server_status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("url", metavar="URL", help="as in http://localhost:8000")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print it; 1 when no healthy server answers."""
    return show(attach(args.url), is_json=args.json)


def show(control: VllmControl, *, is_json: bool) -> int:
    """Ask a server what it is and print it."""

    async def ask() -> ServerStatus:
        try:
            return await server_status(control)
        finally:
            await control.aclose()

    status = asyncio.run(ask())
    if is_json:
        console.print_json(status)
        return 0
    can = status.abilities
    paused = ", paused" if status.is_paused else ""
    weights = f", weights {status.weight_version!r}" if status.weight_version else ""
    text = f"vLLM {can.version} at {status.url}{weights}{paused}"
    console.stdout.print(text, soft_wrap=True)
    for name, limit in status.models.items():
        told = f", {limit} tokens" if limit else ""
        console.stdout.print(f"  vllm:{status.url}#{name}{told}", soft_wrap=True)
    routes = (
        (can.has_completions, "token ids in and out", ""),
        (can.has_generate, "weight version of every token", "--enable-scale-out"),
        (can.has_render and can.has_derender, "messages to tokens and back", "--enable-scale-out"),
        (can.has_rl and can.has_rpc, "pause, versions, reloads", "VLLM_SERVER_DEV_MODE=1"),
        (can.has_lora_updates, "new adapters", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    )
    console.print_rows(
        (console.yes_or_no(has_it), what, Text("" if has_it else fix, style="bold"))
        for has_it, what, fix in routes
    )
    return 0
