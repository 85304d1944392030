"""The start of a launcher; `local/client.py` runs it as a program of its own.

Standard library only. Not here: what a launcher does (`launcher.py`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from katgym.sandbox.local.launcher.launcher import Launcher
from katgym.sandbox.supervisor import program


def main() -> None:
    """Serve on the sockets that are stdin and stdout; the first packet is the configuration."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is katgym's to handle
    program.handle_ignored_signals()
    os.umask(0o022)  # what sandboxes are made of is read by another user
    requests, replies = (socket.socket(fileno=os.dup(fd)) for fd in (0, 1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    config = requests.recv(1 << 20)
    if not config:
        return  # whoever started it has given up
    make = Launcher
    if json.loads(config)["workspace"] == "plain":
        from katgym.sandbox.local.launcher.plain import PlainLauncher

        make = PlainLauncher
    launcher = make(requests, replies, json.loads(config))
    try:
        launcher.prepare()
    except (OSError, ImportError, KeyError) as e:
        text = str(e) if isinstance(e, OSError) else repr(e)
        launcher.reply({"op": "failed", "error": text, "id": launcher.config["id"]})
        sys.exit(1)
    launcher.serve()
