"""Take new weights on the machine of a vLLM server, for a training run elsewhere, until Ctrl-C.

For servers that share no folder with the run, or one over a slow link: what changed since the last
version arrives as deltas, and the server reads whole files from FOLDER. The run names the receiver
beside the server: [[policy.servers]] url = "URL#NAME", receiver = "http://HOST:PORT". Whoever knows
the key in KATGYM_RECEIVER_KEY can send; beyond this machine one is needed.

example:
  katgym vllm receive /tmp/weights
  KATGYM_RECEIVER_KEY=secret katgym vllm receive /scratch/weights 0.0.0.0:8010
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from katgym import console
from katgym.errors import UsageError
from katgym.vllm_server.weight_receiver import KEY_VARIABLE, WeightReceiver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="what is in v1, v2, ... goes")
    address = "address to listen on (127.0.0.1:8010)"
    parser.add_argument("address", metavar="HOST:PORT", nargs="?", default="", help=address)


def run(args: argparse.Namespace) -> int:
    """Receive; 0 after Ctrl-C."""
    host, _, port = (args.address or "127.0.0.1:8010").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"an address is HOST:PORT, as 127.0.0.1:8010, got {args.address!r}")
    key = os.environ.get(KEY_VARIABLE, "")
    if not key and host not in ("127.0.0.1", "localhost"):
        raise UsageError(
            f"whoever reaches {args.address} could send weights: set {KEY_VARIABLE}, here and for"
            " the run"
        )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with WeightReceiver(args.folder, host=host, port=int(port), key=key) as receiver:
            console.stdout.print(receiver.url, soft_wrap=True)
            threading.Event().wait()
    except OSError as e:
        raise UsageError(f"cannot receive into {str(args.folder)!r} at {host}:{port}: {e}") from e
    except KeyboardInterrupt:
        console.stderr.print("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0
