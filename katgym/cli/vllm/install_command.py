"""Make the environment that `katgym vllm serve` runs vLLM in, and print its Python.

Once per machine, in ~/.cache/katgym (KATGYM_CACHE moves it); several GB are downloaded. A second
call prints the path again. The CPU build is for x86-64 and 64-bit Arm.

example:
  katgym vllm install --device cpu
"""

from __future__ import annotations

import argparse
import sys

from katgym import console
from katgym.cli.options import add_option
from katgym.vllm_server.config import Device, VllmServerConfig
from katgym.vllm_server.environment import COMPLETE, environment_folder, install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    add_option(
        parser,
        "device",
        "a build for it (auto)",
        choices=[str(device) for device in Device],
        default="auto",
    )
    add_option(
        parser, "python", "that the environment is made with (katgym's own)", default=sys.executable
    )


def run(args: argparse.Namespace) -> int:
    """Make it, and print the path of its Python."""
    device = VllmServerConfig(model="any", device=Device(args.device)).resolved_device
    folder = environment_folder(device)
    if not (folder / COMPLETE).exists():
        console.stderr.print(f"making {folder}; this takes minutes", soft_wrap=True)
    path = install(device, python=args.python)
    console.stdout.print(str(path), soft_wrap=True)
    return 0
