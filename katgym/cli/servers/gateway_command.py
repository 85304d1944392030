"""Record every token of any agent: serve OpenAI's, Anthropic's, Google's APIs in front of vLLM.

An agent gets a base URL and a key and does what it does; each of its model calls is written down
token by token before it is answered. With --auth keys (the default) sessions are made with the
owner's key, which is read from KATGYM_GATEWAY_KEY, or made up and printed once. With --auth none
whoever can connect is let in, and http://HOST:PORT/s/NAME/v1 begins session NAME.

example:
  katgym gateway --upstream http://127.0.0.1:8000 --store runs/rollouts
  katgym gateway --upstream http://127.0.0.1:8000 --store rollouts --auth none --port 8900
  katgym gateway --upstream http://a:8000 --upstream http://b:8000 --store rollouts \\
      --model my-model --max-staleness 4 --set sampling.temperature=1.0
  katgym gateway --upstream http://127.0.0.1:8000 --store rollouts --shards 4
"""

from __future__ import annotations

import argparse
import os
import secrets

from rich.text import Text

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym.errors import MissingDependencyError, UsageError
from katgym.gateway.client import KEY_VARIABLE
from katgym.gateway.config import GatewayConfig
from katgym.system.listening import is_loopback

_UPSTREAM_KEY_VARIABLE = "KATGYM_UPSTREAM_KEY"


OPTIONS = ConfigOptions(
    GatewayConfig,
    flags=("upstreams", "auth", "model", "max_staleness", "sessions_per_version", "num_shards"),
    names={"upstreams": "upstream"},
    hidden=("upstream_key", "admin_key"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    OPTIONS.add(parser)
    add_option(parser, "store", required=True)
    add_option(parser, "host", "(127.0.0.1)", default="127.0.0.1")
    add_option(parser, "port", "(8900)", default=8900)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = _config(args)
    try:
        from katgym.gateway.server.serve import serve
        from katgym.gateway.shards.serve_shards import serve_shards
    except ModuleNotFoundError as e:
        raise MissingDependencyError(
            f"the gateway needs {e.name!r}: pip install 'katgym[serve]'"
        ) from e

    def announce(url: str) -> None:
        lines = [f"gateway on {url}, store {str(args.store)!r}"]
        if config.auth == "none":
            named = f"{url}/s/NAME"
            lines.append(
                f"agents: OPENAI_BASE_URL={named}/v1 ANTHROPIC_BASE_URL={named}"
                f" GOOGLE_GEMINI_BASE_URL={named}"
            )
        elif not os.environ.get(KEY_VARIABLE):
            lines.append(f"owner's key: {config.admin_key}")
        for line in lines:
            console.stdout.print(Text(line), soft_wrap=True)

    run_server = serve if config.num_shards == 1 else serve_shards
    run_server(config, args.store, host=args.host, port=args.port, started=announce)
    return 0


def _config(args: argparse.Namespace) -> GatewayConfig:
    admin_key = os.environ.get(KEY_VARIABLE, "")
    has_keys = args.auth != "none"
    if has_keys and not admin_key:
        if not is_loopback(args.host):
            raise UsageError(
                f"to listen on {args.host!r}, where others can connect, choose the owner's key:"
                f" set {KEY_VARIABLE}"
            )
        admin_key = secrets.token_urlsafe(24)
    if not has_keys and not is_loopback(args.host):
        raise UsageError(
            f"--auth none lets in whoever can connect, and at {args.host!r} others can: use --auth"
            " keys, or listen on 127.0.0.1"
        )
    return OPTIONS.config(
        args,
        upstreams=tuple(url.rstrip("/").removesuffix("/v1") for url in args.upstreams),
        upstream_key=os.environ.get(_UPSTREAM_KEY_VARIABLE, ""),
        admin_key=admin_key,
    )
