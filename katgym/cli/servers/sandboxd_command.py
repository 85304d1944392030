"""Serve this machine's sandboxes to rollout machines over HTTP.

The token is read from a file, or from the variable KATGYM_SANDBOXD_TOKEN; clients send the same.
Whoever has it can run sandboxed commands here. The connection is not encrypted: on a network you do
not trust, put a TLS proxy in front. Without a token one is made up and printed once.

example:
  katgym sandboxd --port 8765
  katgym sandboxd --host 0.0.0.0 --port 8765 --token-file token --sandbox docker
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import stat
from pathlib import Path

from rich.text import Text

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym.errors import MissingDependencyError, UsageError
from katgym.sandbox import SandboxUnavailableError, backend, layer_store
from katgym.sandbox.remote.config import TOKEN_VARIABLE, SandboxdConfig
from katgym.system.listening import is_loopback

logger = logging.getLogger(__name__)

OPTIONS = ConfigOptions(
    SandboxdConfig,
    flags=("sandbox", "max_sandboxes", "pythons"),
    names={"pythons": "offer-python"},
    hidden=("lease_s",),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_option(parser, "host", "(127.0.0.1)", default="127.0.0.1")
    add_option(parser, "port", "(8765)", default=8765)
    add_option(parser, "token-file", "file that holds the token", type=Path, metavar="FILE")
    OPTIONS.add(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; every sandbox ends with the server."""
    try:
        from katgym.sandbox.remote.server import SandboxServer
        from katgym.system.serving import serve_app
    except ImportError as e:
        raise MissingDependencyError(
            f"sandboxd needs {e.name!r}: pip install 'katgym[serve]'"
        ) from e
    token = _token(args.token_file)
    if token is None:
        if not is_loopback(args.host):
            raise UsageError(
                f"to listen on {args.host!r}, where others can connect, name a token of your own:"
                f" --token-file FILE or the variable {TOKEN_VARIABLE}"
            )
        token = secrets.token_urlsafe(24)
        console.stdout.print(Text(f"token: {token}"))
    config = OPTIONS.config(args)
    server = SandboxServer(config, layer_store(), token)
    asyncio.run(_probe(config.sandbox))

    def tell(url: str) -> None:
        console.stdout.print(Text(f"sandboxes of backend {config.sandbox!r} on {url}"))

    serve_app(server.application(), args.host, args.port, started=tell)
    return 0


async def _probe(name: str) -> None:
    """Raise `SandboxUnavailableError` where the backend cannot work or is not safe."""
    made = backend(name)
    try:
        found = await made.enforcement()
    finally:
        await made.aclose()
    if not found.is_safe:
        reasons = [*found.notes, *(told for told in found.probes.values() if told != "yes")]
        raise SandboxUnavailableError(
            f"backend {name!r} is at level {found.level!r} here, which is not safe for untrusted"
            f" code: {'; '.join(reasons)}"
        )


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as e:
        raise UsageError(f"the token file cannot be read: {e}") from e
    if not token:
        raise UsageError(f"the token file {str(path)!r} is empty")
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("others can read the token file %r; chmod 600 it", str(path))
    return token
