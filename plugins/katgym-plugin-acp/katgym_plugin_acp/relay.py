"""The MCP server that an agent starts: it carries lines between its stdio and katgym's socket.

    python relay.py SOCKET

Standard library only: it runs without katgym's packages. Not here: the answers (`tool_server.py`).
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def main(path: str) -> None:
    """Carry bytes both ways until one side ends."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    threading.Thread(target=_carry_in, args=(sock,), daemon=True).start()
    while data := sock.recv(1 << 16):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _carry_in(sock: socket.socket) -> None:
    while data := os.read(0, 1 << 16):
        sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(sys.argv[1])
