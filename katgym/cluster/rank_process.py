"""One rank's process: a command of katgym that ends with the one that started it.

    python -m katgym.cluster.rank_process train rl rl.toml --out runs/rl

Not here: who starts it (`rank_actor.py`), what it does (the command's).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback

CRASHED = 70
"""The exit code of a command that raised what nobody raised on purpose."""


def main() -> int:
    """Run the command; `CRASHED` with a traceback where it broke."""
    parent = os.getppid()
    from katgym.sandbox.supervisor import syscalls

    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended by then
        return CRASHED
    # Ray has its workers block Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _leave_out_names()
    from katgym.cli.main import main as run

    try:
        return run(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        return CRASHED


def _leave_out_names() -> None:
    """Have torch not warn that it looks up names of addresses in vain: nobody needs them here.

    It has no narrower way than to leave out all warnings of its C++ part, which reads the variable
    as it is imported. Errors are told.
    """
    try:
        socket.getnameinfo((os.environ["MASTER_ADDR"], 0), socket.NI_NUMERICSERV)
    except socket.gaierror:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
