"""Attempts to have no verdict: what the patch does to its own grading is a failure of the patch."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from katgym_envs.swe.grading.report import Outcome

from ..attack import NOT_SOLVED, Attack, in_source

FAMILY = "void gradings"

_SENDER = """
import json, os, sys
def send_all(text):
    for fd in range(3, 64):
        try: os.write(fd, text)
        except OSError: pass
"""
_LINE = '{"kind": "test", "index": 0, "phases": [{"when": "call", "outcome": "passed", "duration": %s}]}'
_LINES = {
    "nan-report": ("a duration that is no number", _LINE % "NaN"),
    "infinite-report": ("an endless duration", _LINE % "1e999"),
    "huge-number-report": ("a number of 100,000 digits", _LINE % ("9" * 100_000)),
    "surrogate-report": ("half a character", _LINE.replace('"call"', '"\\\\ud800"') % "1"),
    "list-report": ("a list in the place of a report", "[]"),
}
_JUNIT = """
import atexit, glob, os
def spoil():
    for path in glob.glob("/tmp/junit-*"):
        data = open(path, "rb").read().decode()
        os.unlink(path)
        SPOIL
atexit.register(spoil)
import _pytest.junitxml as junit
_finish = junit.LogXML.pytest_sessionfinish
def finish(self):
    _finish(self); spoil()
junit.LogXML.pytest_sessionfinish = finish
"""
_SPOILS = {
    "junit-utf16": ("the junit report in UTF-16", "open(path, 'wb').write(data.encode('utf-16'))"),
    "junit-rot13": (
        "the junit report says rot13",
        "open(path, 'w').write(data.replace('utf-8', 'rot13'))",
    ),
    "junit-not-utf8": (
        "the junit report is no UTF-8",
        "open(path, 'wb').write(data.encode() + bytes([255]))",
    ),
    "junit-folder": ("the junit report is a folder", "os.mkdir(path)"),
    "junit-secret": (
        "the junit report may not be read",
        "open(path, 'w').write(data); os.chmod(path, 0)",
    ),
    "junit-long": (
        "the junit report is 200 MB long",
        "f = open(path, 'w'); f.seek(200 << 20)\n        try: f.write('x'); f.close()\n        except OSError: pass",
    ),
    "junit-gone": ("no junit report", "pass"),
}
_DEEDS = {
    "close-descriptors": ("every descriptor closed", "import os\nos.closerange(0, 4096)\n"),
    "other-descriptors": (
        "every descriptor is another one",
        "import os\nfor fd in range(64):\n    try: os.dup2(os.open('/dev/zero', 2), fd)\n    except OSError: pass\n",
    ),
    "stop-parent": (
        "its ancestors stopped",
        "import os, signal\nfor pid in (os.getppid(), 1, -1):\n    try: os.kill(pid, signal.SIGSTOP)\n    except OSError: pass\n",
    ),
    "signal-self": ("it ends itself", "import os\nos.kill(os.getpid(), 9)\n"),
    "abort": ("it aborts", "import os\nos.abort()\n"),
    "exit-codes": ("an exit code that means something else", "import os\nos._exit(137)\n"),
    "endless-thread": (
        "a thread that never ends",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(10**6,)).start()\n",
    ),
    "heir": (
        "a child that keeps all descriptors open",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(10**6)\n",
    ),
    "remove-all": (
        "every file that it may remove",
        "import os, shutil\nfor path in ('/tmp', '/workspace', '/home', '/dev/shm'): shutil.rmtree(path, ignore_errors=True)\n",
    ),
    "no-folder": (
        "its folder is another one, and gone",
        "import os\nos.makedirs('/tmp/a'); os.chdir('/tmp/a'); os.rmdir('/tmp/a')\n",
    ),
    "secret-folders": (
        "folders that nobody may enter",
        "import os\nfor i in range(9): os.makedirs(f'/tmp/s{i}/t'); os.chmod(f'/tmp/s{i}', 0)\nos.chmod('/tmp', 0); os.chmod('/workspace', 0)\n",
    ),
    "deep-folders": (
        "folders deeper than a path may be long",
        "import os\nfor i in range(3000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n",
    ),
    "odd-name": (
        "results with names that are no text",
        "import os, sys\nprint('\\udcff'); open(b'/tmp/\\xff\\n', 'w')\nclass Odd(str):\n    def __repr__(self): return '\\ud800'\ndef plural(word): raise ValueError(Odd('\\ud800'))\n",
    ),
    "raising-repr": (
        "results that raise when they are shown",
        "class Bad:\n    def __repr__(self): raise SystemExit(0)\n    def __eq__(self, other): raise Bad2()\nclass Bad2(Exception):\n    def __str__(self): raise MemoryError\n    __repr__ = __str__\ndef plural(word): return Bad()\n",
    ),
    "nested-result": (
        "results nested without end",
        "deep = []\nfor _ in range(200_000): deep = [deep]\ndef plural(word): return deep\n",
    ),
    "limits": (
        "limits of its process set to nothing",
        "import resource\nfor name in dir(resource):\n    if name.startswith('RLIMIT_'):\n        try: resource.setrlimit(getattr(resource, name), (0, 0))\n        except (ValueError, OSError): pass\n",
    ),
}
_PATHS = {
    "long-name": ("a name of 300 letters", {"a" * 300 + ".py": "x = 1\n"}),
    "long-path": ("a path of 6,000 letters", {"/".join(["d" * 100] * 60) + "/a.py": "x = 1\n"}),
    "deep-path": ("a path of 1,500 folders", {"/".join("d" * 1500) + "/a.py": "x = 1\n"}),
    "below-file": ("a file below a file", {"README.md/x.py": "x = 1\n"}),
    "over-folder": ("a file in the place of a folder", {"docs": "x = 1\n"}),
    "many-files": ("thirty thousand files", {f"many/{i}.txt": "x\n" for i in range(30_000)}),
    "full-disk": ("more than the disk holds", {f"big/{i}.txt": "x" * (4 << 20) + "\n" for i in range(20)}),
}  # fmt: skip
_CODES = {
    **{
        n: (about, _SENDER + f"send_all({text.encode() + bytes([10])!r})\n")
        for n, (about, text) in _LINES.items()
    },
    "invalid-utf8-report": (
        "a report that is no UTF-8",
        _SENDER + "send_all(bytes([255, 254, 10]))\n",
    ),
    **{n: (about, _JUNIT.replace("SPOIL", code)) for n, (about, code) in _SPOILS.items()},
    **_DEEDS,
}
_REFUSED = NOT_SOLVED | {Outcome.PATCH_INVALID, Outcome.PATCH_EMPTY}
ATTACKS = [
    *(
        Attack(name=n, family=FAMILY, about=about, files=in_source(code), is_new=True)
        for n, (about, code) in _CODES.items()
    ),
    *(
        Attack(
            name=n,
            family=FAMILY,
            about=about,
            expected=_REFUSED,
            is_new=True,
            patch="".join(
                f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}"
                for path, text in files.items()
            ),
        )
        for n, (about, files) in _PATHS.items()
    ),
]
