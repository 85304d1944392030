"""Start, watch and look at vLLM servers, the policy of `vllm:`.

vLLM runs in an environment of its own, since its pins would fight katgym's; `install` makes it.

example:
  katgym vllm install --device cpu
  katgym vllm serve Qwen/Qwen3-0.6B --port 8000
  katgym vllm status http://localhost:8000
"""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {
    "serve": "start a server and watch it until Ctrl-C",
    "install": "make the environment that servers run in, once",
    "attach": "wait for a running server, then show what it is",
    "status": "show what a running server is: models, version, routes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands, which bring what runs them."""
    add_subcommands(parser, __name__, SUBCOMMANDS)
