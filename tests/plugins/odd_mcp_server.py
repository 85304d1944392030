"""An MCP server that starts at once and misbehaves as it is asked to; its argument is the example.

Run as a program with the standard library alone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import server


def look() -> str:
    """Show the variables' names, the working folder and what lies in it."""
    found: dict[str, Any] = {"variables": dict(os.environ), "folder": os.getcwd()}
    found["files"] = {path.name: path.read_text() for path in Path.cwd().glob("*[!_]")}
    return json.dumps(found)


def leave(text: str) -> str:
    """Write a file into the working folder."""
    Path("left").write_text(text)
    return "written"


def spawn() -> str:
    """Start a process that outlives its parent; tell both numbers."""
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return json.dumps([os.getpid(), child.pid])


def die() -> str:
    """End the server without an answer."""
    sys.stderr.write("the database is gone\n")
    sys.stderr.flush()
    os._exit(3)


def hang() -> str:
    """Do not answer for long, nor read."""
    time.sleep(3600)
    return ""


def rubbish() -> str:
    """Write lines that are no messages, then answer."""
    sys.stdout.buffer.write(b"Loading... \xff\xfe\n{]\n")
    sys.stdout.flush()
    return "done"


def flood(text: str) -> str:
    """Write without an end: lines that are no messages, or one line."""
    while True:
        sys.stdout.write(text * 10_000)


def eat() -> str:
    """Use memory without an end."""
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))


def read(path: str) -> str:
    """Read a file, or say why it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError as e:
        return f"no file: {e.strerror}"


def connect(port: int) -> str:
    """Connect to a port of this machine, or say why that cannot be."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=300).close()
    except OSError as e:
        return f"no connection: {e.strerror}"
    return "connected"


ALL = (look, leave, spawn, die, hang, rubbish, flood, eat, read, connect)
server.TOOLS = {f.__name__: (f.__doc__, f) for f in ALL}
server.SCHEMA = {"type": "object"}
server.main()
