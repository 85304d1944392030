"""Sockets that servers of ours listen on, and who can reach them.

Not here: the servers (`cli/servers/sandboxd_command.py`, `gateway/serve.py`).
"""

from __future__ import annotations

import ipaddress
import socket

from katgym.errors import InfrastructureError


def listen(host: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises `InfrastructureError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as e:
        raise InfrastructureError(f"cannot listen on {host!r}, port {port}: {e}") from e


def url_of(host: str, listening: socket.socket) -> str:
    """Return the URL of what listens there."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
