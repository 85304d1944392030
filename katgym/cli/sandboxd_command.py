"""Serve this machine's sandboxes to rollout machines over HTTP.

The token is read from a file, or from the variable KATGYM_SANDBOXD_TOKEN; clients send the same.
Whoever has it can run sandboxed commands here. The connection is not encrypted: on a network you do
not trust, put a TLS proxy in front. Without a token one is made up and printed once.

example:
  katgym sandboxd --port 8765
  katgym sandboxd --host 0.0.0.0 --port 8765 --token-file token --backend docker
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
from pathlib import Path

from rich.text import Text

from katgym import console
from katgym.errors import MissingDependencyError, UsageError
from katgym.sandbox import backend, layer_store

_VARIABLE = "KATGYM_SANDBOXD_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="port to listen on (8765)")
    parser.add_argument("--backend", default="local", help="see katgym sandbox list (local)")
    parser.add_argument("--token-file", type=Path, default=None, help="file that holds the token")
    parser.add_argument(
        "--max-sandboxes", type=int, default=256, help="sandboxes at a time, at most (256)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; every sandbox ends with the server."""
    try:
        import uvicorn

        from katgym.sandbox.remote.server import SandboxServer
    except ImportError as e:
        raise MissingDependencyError(
            f"sandboxd needs {e.name!r}: pip install 'katgym[serve]'"
        ) from e
    token = _token(args.token_file)
    if token is None:
        if not _is_loopback(args.host):
            raise UsageError(
                f"to listen on {args.host!r}, where others can connect, name a token of your own:"
                f" --token-file FILE or the variable {_VARIABLE}"
            )
        token = secrets.token_urlsafe(24)
        console.stdout.print(Text(f"token: {token}"))
    server = SandboxServer(
        backend(args.backend), layer_store(), token, max_sandboxes=args.max_sandboxes
    )
    console.stdout.print(f"sandboxes of backend {args.backend!r} on http://{args.host}:{args.port}")
    config = uvicorn.Config(
        server.application(),
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run()
    return 0


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(_VARIABLE) or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as e:
        raise UsageError(f"the token file cannot be read: {e}") from e
    if not token:
        raise UsageError(f"the token file {str(path)!r} is empty")
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
