"""Start a vLLM server, wait until it is healthy, and watch it until Ctrl-C.

It runs in the environment of `katgym vllm install`, or in that of --python. When it fails, the end
of its log is shown; when this command ends, in whatever way, nothing of it is left. What follows --
is passed on to vLLM.

With --lora adapters can be exchanged while it runs, with --rl it can be paused and get new weights:
whoever can connect can do so as well.

example:
  katgym vllm serve Qwen/Qwen3-0.6B --port 8000 --lora --rl
  katgym vllm serve ./model --device cpu --dtype float32 -- --max-num-seqs 64
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from types import FrameType

from katgym import console
from katgym.vllm_server.config import Device, LogprobsMode, TransferBackend, VllmServerConfig
from katgym.vllm_server.server import VllmServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or hub id")
    parser.add_argument("--name", default="", help="what clients call the model (MODEL)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port (8000); 0: any free one")
    parser.add_argument("--device", choices=[*Device], default=Device.AUTO)
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument(
        "--max-model-len", type=int, default=0, help="tokens of a call, at most (the model's limit)"
    )
    parser.add_argument("--lora", action="store_true", help="adapters can be exchanged")
    parser.add_argument("--max-lora-rank", type=int, default=64)
    parser.add_argument("--rl", action="store_true", help="pause, weight versions, reloads")
    parser.add_argument(
        "--weight-transfer", choices=[t for t in TransferBackend if t], default=TransferBackend.NONE
    )
    parser.add_argument("--logprobs-mode", choices=[*LogprobsMode], default=LogprobsMode.PROCESSED)
    parser.add_argument("--python", default="", help="Python of an environment with vLLM")
    parser.add_argument("--log", type=Path, metavar="FILE", help="where its output goes")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds to start in (600)")
    parser.set_defaults(passes_on=True)


def run(args: argparse.Namespace) -> int:
    """Serve; 0 after Ctrl-C, 1 when the server does not start or ends by itself."""
    config = VllmServerConfig(
        model=args.model,
        served_name=args.name,
        python=args.python,
        host=args.host,
        port=args.port,
        device=args.device,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        logprobs_mode=args.logprobs_mode,
        has_lora=args.lora,
        max_lora_rank=args.max_lora_rank,
        has_rl_routes=args.rl,
        weight_transfer=args.weight_transfer,
        extra_args=tuple(args.extra),
        start_timeout_s=args.timeout,
        log_file=args.log,
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    console.stderr.print(f"starting vLLM for {config.model}", markup=False, soft_wrap=True)
    server = VllmServer(config)
    try:
        with server:
            text = f"vllm:{server.url}#{config.name}"
            console.stdout.print(text, markup=False, soft_wrap=True)
            console.stderr.print(f"log: {server.log_file}; Ctrl-C stops it", markup=False)
            server.wait()
            server.check()
    except KeyboardInterrupt:
        console.stderr.print("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
