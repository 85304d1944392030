"""Record every token of any agent: serve OpenAI's and Anthropic's APIs in front of vLLM.

An agent gets a base URL and a key and does what it does; each of its model calls is written down
token by token before it is answered. With --auth keys (the default) sessions are made with the
owner's key, which is read from KATGYM_GATEWAY_KEY, or made up and printed once. With --auth none
whoever can connect is let in, and http://HOST:PORT/s/NAME/v1 begins session NAME.

example:
  katgym gateway --upstream http://127.0.0.1:8000 --store runs/rollouts
  katgym gateway --upstream http://127.0.0.1:8000 --store rollouts --auth none --port 8900
  katgym gateway --upstream http://a:8000 --upstream http://b:8000 --store rollouts \\
      --model my-model --sampling temperature=1.0 --sampling top_p=1.0 --max-staleness 4
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
from pathlib import Path
from typing import Any

from rich.text import Text

from katgym import console
from katgym.errors import MissingDependencyError, UsageError
from katgym.gateway.client import KEY_VARIABLE
from katgym.gateway.config import ANSWERINGS, AUTHS, GatewayConfig
from katgym.listening import is_loopback

_UPSTREAM_KEY_VARIABLE = "KATGYM_UPSTREAM_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add = parser.add_argument
    add("--upstream", action="append", required=True, metavar="URL", help="a model server; repeat")
    add("--store", type=Path, required=True, metavar="DIR", help="folder of the rollout store")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=8900, help="port to listen on (8900); 0: any")
    add("--auth", choices=AUTHS, default="keys", help="who is let in (keys)")
    add("--model", default="", help="model to ask for, whatever agents call it")
    add("--answering", choices=ANSWERINGS, default="auto", help="how answers are made (auto)")
    add("--tokenizer", default="", metavar="DIR", help="tokenizer, if the server's is not here")
    add("--renderer", default="", help="renderer of the model's chat format")
    add(
        "--sampling",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a sampling parameter that wins over the agents'; repeat",
    )
    add("--max-staleness", type=int, default=None, help="weight updates a session may live through")
    add("--sessions-per-version", type=int, default=None, help="sessions begun per weight version")
    add("--wait", action="store_true", help="sessions that may not begin wait, instead of a 429")
    add("--max-calls", type=int, default=None, help="calls a session may make")
    add("--max-tokens", type=int, default=None, help="tokens a session may sample")
    add("--session-timeout", type=float, default=None, metavar="S", help="seconds a session lives")
    add("--call-timeout", type=float, default=1800.0, metavar="S", help="seconds per answer")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = _config(args)
    try:
        from katgym.gateway.serve import serve
    except ModuleNotFoundError as e:
        raise MissingDependencyError(
            f"the gateway needs {e.name!r}: pip install 'katgym[serve]'"
        ) from e

    def started(url: str) -> None:
        lines = [f"gateway on {url}, store {str(args.store)!r}"]
        if config.auth == "none":
            lines.append(f"agents: OPENAI_BASE_URL={url}/s/NAME/v1 ANTHROPIC_BASE_URL={url}/s/NAME")
        elif not os.environ.get(KEY_VARIABLE):
            lines.append(f"owner's key: {config.admin_key}")
        for line in lines:
            console.stdout.print(Text(line), soft_wrap=True)

    serve(config, args.store, host=args.host, port=args.port, started=started)
    return 0


def _config(args: argparse.Namespace) -> GatewayConfig:
    admin_key = os.environ.get(KEY_VARIABLE, "")
    if args.auth == "keys" and not admin_key:
        if not is_loopback(args.host):
            raise UsageError(
                f"to listen on {args.host!r}, where others can connect, choose the owner's key:"
                f" set {KEY_VARIABLE}"
            )
        admin_key = secrets.token_urlsafe(24)
    if args.auth == "none" and not is_loopback(args.host):
        raise UsageError(
            f"--auth none lets in whoever can connect, and at {args.host!r} others can: use --auth"
            " keys, or listen on 127.0.0.1"
        )
    return GatewayConfig(
        upstreams=tuple(url.rstrip("/").removesuffix("/v1") for url in args.upstream),
        upstream_key=os.environ.get(_UPSTREAM_KEY_VARIABLE, ""),
        model=args.model,
        answering=args.answering,
        tokenizer=args.tokenizer,
        renderer=args.renderer,
        sampling=_sampling(args.sampling),
        auth=args.auth,
        admin_key=admin_key,
        max_staleness=args.max_staleness,
        sessions_per_version=args.sessions_per_version,
        is_waiting=args.wait,
        max_calls=args.max_calls,
        max_tokens=args.max_tokens,
        session_timeout_s=args.session_timeout,
        call_timeout_s=args.call_timeout,
    )


def _sampling(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError as e:
            raise UsageError(
                f"--sampling takes NAME=VALUE with a JSON value, as temperature=1.0; got {entry!r}"
            ) from e
        if not equals or not name:
            raise UsageError(f"--sampling takes NAME=VALUE, got {entry!r}")
    return found
