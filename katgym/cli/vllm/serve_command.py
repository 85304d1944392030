"""Start a vLLM server, try its model with a request, and watch it until Ctrl-C.

It runs in the environment of `katgym vllm install`, or in that of --python. When it fails, what
ended it is shown, with its log up to that; when this command ends, in whatever way, nothing of it
is left. What follows -- is passed on to vLLM.

With --lora adapters can be exchanged while it runs, with --rl it can be paused and get new weights:
whoever can connect can do so as well.

example:
  katgym vllm serve Qwen/Qwen3-0.6B --port 8000 --lora --rl
  katgym vllm serve ./model --device cpu --dtype float32 -- --max-num-seqs 64
"""

from __future__ import annotations

import argparse
import signal

from katgym import console
from katgym.cli.options import ConfigOptions
from katgym.vllm_server.config import VllmServerConfig
from katgym.vllm_server.server import VllmServer

OPTIONS = ConfigOptions(
    VllmServerConfig,
    positional=("model",),
    flags=(
        "served_name", "host", "port", "device", "dtype", "max_model_len", "has_lora",
        "has_rl_routes", "python",
    ),
    names={"served_name": "name", "has_rl_routes": "rl"},
    defaults={"port": 8000},
    hidden=("extra_args",),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    OPTIONS.add(parser)
    parser.set_defaults(passes_on=True)


def run(args: argparse.Namespace) -> int:
    """Serve; 0 after Ctrl-C, 1 when the server does not start or ends by itself."""
    config = OPTIONS.config(args, extra_args=tuple(args.extra))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    console.stderr.print(f"starting vLLM for {config.model}", soft_wrap=True)
    server = VllmServer(config)
    try:
        with server:
            server.try_model()
            text = f"vllm:{server.url}#{config.name}"
            console.stdout.print(text, soft_wrap=True)
            console.stderr.print(f"log: {server.log_file}; Ctrl-C stops it")
            server.wait()
            server.check()
    except KeyboardInterrupt:
        console.stderr.print("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0
