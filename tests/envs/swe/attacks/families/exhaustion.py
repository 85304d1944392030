"""Using everything up, and harming the machine: the grading may fail, nothing else may."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from katgym_envs.swe.grading.report import Outcome

from ..attack import NOT_SOLVED, Attack, in_source

FAMILY = "exhaustion"
HOST = "host safety"
_ENDED = NOT_SOLVED

_CODE = {
    "fork-bomb": ("processes without end", """
import os
while True:
    try: os.fork()
    except OSError: pass
""", True),
    "fork-bomb-setsid": ("the same, each in a session of its own", """
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
""", True),
    "threads": ("threads without end", """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError: pass
""", False),
    "memory": ("memory without end", """
data = []
while True: data.append(bytearray(1 << 24))
""", False),
    "shared-memory": ("/dev/shm and /tmp filled", """
import os
for place in ("/dev/shm/x", "/tmp/x"):
    try:
        with open(place, "wb") as file:
            while True: file.write(b"x" * (1 << 22))
    except OSError: pass
""", False),
    "disk": ("the workspace filled", """
try:
    with open("/workspace/x", "wb") as file:
        while True: file.write(b"x" * (1 << 22))
except OSError: pass
""", False),
    "inodes": ("a hundred thousand files", """
import os
try:
    for number in range(150_000): os.close(os.open(f"/tmp/{number}", os.O_CREAT))
except OSError: pass
""", True),
    "sparse-file": ("a file of a terabyte", """
import os
try:
    with open("/workspace/sparse", "wb") as file: file.truncate(1 << 40)
except OSError: pass
""", False),
    "descriptors": ("descriptors without end", """
import os
try:
    while True: os.dup(1)
except OSError: pass
""", False),
    "output": ("output without end", """
import os
for _ in range(4000): os.write(1, b"x" * 65536); os.write(2, b"\\x1b[2J" * 8192)
""", False),
    "report-flood": ("the private channel flooded", """
import os
for fd in range(3, 32):
    try:
        for _ in range(600): os.write(fd, b"x" * 65536)
    except OSError: pass
""", False),
    "spin": ("a loop that ignores signals", """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""", True),
    "sleep": ("it waits for the timeout", "import time\ntime.sleep(600)\n", True),
    "deep-recursion": ("the stack overrun", "import sys\nsys.setrecursionlimit(10**7)\ndef f(): f()\nf()\n", False),
    "segfault": ("a crash", "import ctypes\nctypes.string_at(0)\n", False),
    "huge-integer": ("a computation that never ends in C", "x = 9 ** 9 ** 9\n", True),
    "deep-report": ("reports nested very deep", """
import os
for fd in range(3, 32):
    try: os.write(fd, b"[" * 100000 + b"\\n")
    except OSError: pass
""", False),
    "junit-bomb": ("entities that expand without end in junit", """
import atexit, os
import _pytest.junitxml as junit
def bomb(self):
    with open(self.logfile, "w") as file:
        file.write('<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(f'<!ENTITY {c} "&{p};&{p};&{p};&{p};&{p};&{p};&{p};&{p};">' for p, c in zip("abcdefghij", "bcdefghijk")) + ']><testsuites>&k;</testsuites>')
junit.LogXML.pytest_sessionfinish.__code__ = bomb.__code__
""", False),
}  # fmt: skip
_HARM = {
    "nested-namespaces": ("namespaces, mounts, chroot", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.unshare(0x10000000 | 0x20000); libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
libc.mount(b"/", b"/tmp", None, 4096, None); libc.chroot(b"/tmp"); libc.setuid(0)
""", False),
    "host-files": ("writes outside of what is its own", """
import os
for path in ("/etc/katgym-escaped", "/usr/katgym-escaped", "/root/katgym-escaped", "/katgym-escaped",
             os.path.dirname(os.__file__) + "/katgym-escaped", "/proc/sys/kernel/hostname",
             "/proc/sysrq-trigger", "/sys/power/state", "/dev/mem", "/dev/kmsg"):
    try: open(path, "a").write("katgym-escaped")
    except OSError: pass
import sys
for folder in sys.path:
    try: open(folder + "/katgym-escaped.pth", "w").write("import os")
    except OSError: pass
""", False),
    "kernel-interfaces": ("reboot, keys, bpf, modules, clocks", """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
for number in (169, 250, 321, 298, 313, 246, 248, 249, 164, 227, 167, 168, 163): libc.syscall(number, 0, 0, 0, 0, 0)
try: time.clock_settime(0, 0)
except OSError: pass
try: os.nice(-20)
except OSError: pass
""", False),
    "terminal": ("escape sequences in messages and names", """
raise RuntimeError("\\x1b]0;owned\\x07\\x1b[2J\\x1b[8m hidden \\x9b31m")
""", False),
    "git-in-tree": ("a hostile `.git` made while the tests run", """
import os
os.makedirs("/workspace/.git/hooks", exist_ok=True)
open("/workspace/.git/config", "w").write("[core]\\n\\tfsmonitor = touch /tmp/katgym-escaped\\n")
open("/workspace/.gitattributes", "w").write("* filter=x diff=x\\n")
""", False),
    "junit-link": ("the junit report a link to a host's file, then a fifo", """
import _pytest.junitxml as junit, os
def link(self):
    import os
    try: os.unlink(self.logfile)
    except OSError: pass
    os.symlink("/etc/shadow", self.logfile)
junit.LogXML.pytest_sessionfinish.__code__ = link.__code__
""", False),
    "junit-fifo": ("the junit report a fifo that nobody writes", """
import _pytest.junitxml as junit
def fifo(self):
    import os
    os.mkfifo(self.logfile)
junit.LogXML.pytest_sessionfinish.__code__ = fifo.__code__
""", False),
}  # fmt: skip
ATTACKS = [
    Attack(
        name=name,
        family=family,
        about=about,
        files=in_source(code),
        expected=_ENDED | {Outcome.FAILED},
        is_slow=is_slow,
        is_new=name in ("deep-report", "junit-bomb", "report-flood", "junit-fifo", "junit-link"),
    )
    for family, table in ((FAMILY, _CODE), (HOST, _HARM))
    for name, (about, code, is_slow) in table.items()
]
