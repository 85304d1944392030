"""Make the environment that `katgym vllm serve` runs vLLM in, and print its Python.

Once per machine, in ~/.cache/katgym (KATGYM_CACHE moves it); several GB are downloaded. A second
call prints the path again. The CPU build is for x86-64 and 64-bit Arm.

example:
  katgym vllm install --cpu
"""

from __future__ import annotations

import argparse
import sys

from katgym import console
from katgym.vllm_server.config import Device, VllmServerConfig
from katgym.vllm_server.environment import COMPLETE, environment_folder, install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cpu", action="store_const", const=Device.CPU, dest="device")
    kind.add_argument("--gpu", action="store_const", const=Device.GPU, dest="device")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter to make it with (katgym's own)"
    )
    parser.set_defaults(device=Device.AUTO)


def run(args: argparse.Namespace) -> int:
    """Make it, and print the path of its Python."""
    device = VllmServerConfig(model="any", device=args.device).resolved_device
    folder = environment_folder(device)
    if not (folder / COMPLETE).exists():
        console.stderr.print(f"making {folder}; this takes minutes", markup=False, soft_wrap=True)
    path = install(device, python=args.python)
    console.stdout.print(str(path), markup=False, soft_wrap=True)
    return 0
