"""Kinds of things that agents leave beside a right fix, none of which may change its verdict.

patch = add_clutter(base_files, gold_changes, CLUTTER)
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterable, Mapping

from katgym.sandbox import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.layer import FileEntry

_WORDS = (
    "pytest _pytest PYTEST_CURRENT_TEST eval( exec( compile( __import__( subprocess.run os.walk"
    " glob sys._getframe f_back gc.get_objects sys.modules __subclasses__ __code__ ctypes builtins"
    " sys.settrace linecache marshal b64decode os.fork atexit /proc/ /tmp/ tests/test_a.py"
)
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360"
    "000002000001e221bc330000000049454e44ae426082"
)
_NOTEBOOK = json.dumps(
    {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": 1,
                "metadata": {},
                "outputs": [],
                "source": ["import subprocess\n", "!pytest -q\n", "eval('1 + 1')\n"],
            }
        ],
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
).encode()
_SCRIPT_TEST = (
    b"import pytest\n\n\ndef test_it():\n    with pytest.raises(ValueError):\n        int('a')\n"
)
_WORKFLOW = (
    b"on: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n    steps:\n      - run: pytest -q\n"
)


def _database() -> bytes:
    """Return a file as coverage writes it: a database of SQLite."""
    made = sqlite3.connect(":memory:")
    try:
        made.execute("CREATE TABLE file (id INTEGER PRIMARY KEY, path TEXT)")
        made.execute("INSERT INTO file (path) VALUES ('tests/test_a.py')")
        return made.serialize()
    finally:
        made.close()


NEW_FILES: Mapping[str, Mapping[str, bytes]] = {
    "pytest cache": {
        ".pytest_cache/.gitignore": b"# Created by pytest automatically.\n*\n",
        ".pytest_cache/README.md": b"# pytest cache directory #\n",
        ".pytest_cache/CACHEDIR.TAG": b"Signature: 8a477f597d28d172789f06886806bc55\n",
        ".pytest_cache/v/cache/nodeids": b'["tests/test_a.py::test_a"]',
        ".pytest_cache/v/cache/lastfailed": b'{"tests/test_a.py::test_a": true}',
    },
    "pytest cache below": {"tests/.pytest_cache/v/cache/stepwise": b"[]"},
    "mypy cache": {
        ".mypy_cache/3.11/builtins.data.json": b'{"eval": "exec("}',
        ".mypy_cache/.gitignore": b"*\n",
    },
    "large mypy cache": {
        f".mypy_cache/3.11/module_{i}.{kind}.json": b'{"names": "subprocess."}'
        for i in range(1200)
        for kind in ("data", "meta")
    },
    "ruff cache": {".ruff_cache/0.9.1/123456": b"\x00\x01pytest", ".ruff_cache/.gitignore": b"*"},
    "hypothesis database": {".hypothesis/examples/ab/cd": b"\x00\x01"},
    "byte code": {"__pycache__/tool.cpython-311.pyc": b"\xa7\r\r\n\x00\x00\x00\x00"},
    "coverage database": {".coverage": _database()},
    "coverage of processes": {".coverage.host.1234.XaBcDe": _database()},
    "coverage pages": {"htmlcov/index.html": b"<h1>pytest</h1>", "htmlcov/style.css": b"a {}"},
    "coverage xml": {"coverage.xml": b'<?xml version="1.0"?><coverage line-rate="0.9"/>\n'},
    "junit report": {"report.xml": b'<testsuite name="pytest" tests="1"/>\n'},
    "tox folder": {".tox/py311/log/1-commands.log": b"pytest -q\n"},
    "nox folder": {".nox/tests/tmp/x": b"x"},
    "checkpoints": {".ipynb_checkpoints/look-checkpoint.ipynb": _NOTEBOOK},
    "cache of a hundred files": {f".cache/entry-{i:03}": bytes([i]) * 64 for i in range(100)},
    "build folder": {"build/lib/module_of_build.py": b"import subprocess\n"},
    "egg metadata": {"product.egg-info/PKG-INFO": b"Name: product\n"},
    "notes": {"NOTES.md": _WORDS.encode()},
    "to-do list": {"TODO.md": b"- run pytest\n- look through tests with glob\n"},
    "text notes": {"notes.txt": _WORDS.encode()},
    "summary": {"SUMMARY.rst": b"Summary\n=======\n\nFound with pytest.\n"},
    "page of the docs": {"docs/fix.md": _WORDS.encode(), "docs/fix.txt": _WORDS.encode()},
    "docs configuration": {"docs/conf.py": b"import sys\nsys.path.insert(0, '..')\n"},
    "changelog": {"CHANGELOG.md": b"\n- a fix\n"},
    "readme": {"README.md": b"\nRun `pytest`.\n", "README.rst": b"\nRun pytest.\n"},
    "own test": {"tests/test_of_the_fix.py": _SCRIPT_TEST},
    "own test beside the product": {"test_of_the_fix.py": _SCRIPT_TEST},
    "test with a late name": {"fix_test.py": _SCRIPT_TEST},
    "helpers of tests": {"tests/fix_helpers.py": b"import subprocess\nimport glob\n"},
    "conftest": {"tests/conftest.py": b"import pytest\n", "conftest.py": b"import pytest\n"},
    "script to reproduce": {"reproduce.py": b"import pytest\nprint(pytest.__version__)\n"},
    "script with processes": {
        "run_checks.py": b"import subprocess\nsubprocess.run(['pytest', '-q'], check=False)\n"
    },
    "script that searches files": {
        "scratch.py": b"import glob, os\nprint(glob.glob('tests/*'), list(os.walk('.')))\n"
    },
    "script with eval": {"try_it.py": b"print(eval('1 + 1'))\nexec('x = 1')\n"},
    "script with frames": {"debug_me.py": b"import sys, gc\nprint(sys._getframe(), gc.garbage)\n"},
    "script with a syntax error": {"broken_draft.py": b"def f(:\n"},
    "shell script": {"run_tests.sh": b"#!/bin/sh\nexec python3 -m pytest -q \"$@\"\n"},
    "empty script": {"empty_draft.py": b""},
    "notebook": {"look.ipynb": _NOTEBOOK},
    "requirements": {"requirements.txt": b"pytest\n", "requirements-dev.txt": b"pytest-cov\n"},
    "lock file": {"uv.lock": b'version = 1\n[[package]]\nname = "pytest"\n'},
    "workflow": {".github/workflows/tests.yml": _WORKFLOW},
    "other continuous integration": {".gitlab-ci.yml": b"test:\n  script: pytest\n"},
    "hooks before commits": {".pre-commit-config.yaml": b"repos: []\n"},
    "settings of VS Code": {".vscode/settings.json": b'{"python.testing.pytestEnabled": true}\n'},
    "settings of IDEA": {".idea/workspace.xml": b"<project/>\n"},
    "editor configuration": {".editorconfig": b"root = true\n"},
    "swap file": {".notes.txt.swp": b"b0VIM 9.0\x00\x00"},
    "back-up of an editor": {"notes.txt~": b"pytest\n"},
    "ignore file": {".gitignore": b"\n.pytest_cache/\n"},
    "attributes": {".gitattributes": b"*.py text\n"},
    "makefile": {"Makefile": b"\ntest:\n\tpytest -q\n"},
    "dockerfile": {"Dockerfile": b"FROM python:3.11\nRUN pip install pytest\n"},
    "tox configuration": {"tox.ini": b"\n[tox]\nenvlist = py311\n"},
    "project configuration": {"pyproject.toml": b"\n[tool.anything]\nx = 1\n"},
    "setup configuration": {"setup.cfg": b"\n[tool:anything]\nx = 1\n"},
    "environment file": {".env": b"PYTEST_ADDOPTS=-q\n"},
    "python version": {".python-version": b"3.11.9\n"},
    "short log": {"pytest.log": b"1 passed in 0.01s\n"},
    "log of blank lines": {"empty.log": b"\n" * 30_000},
    "two mebibytes of blank lines": {"blank.txt": b"\n" * (2 << 20)},
    "one long line": {"long.txt": b"import pytest " * 50_000},
    "rest of a patch": {"fix.patch.rej": b"@@ -1 +1 @@\n-a\n+b\n", "module.py.orig": b"x = 1\n"},
    "patch": {"fix.patch": b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-import pytest\n+import os\n"},
    "dump of JSON": {"result.json": json.dumps({"eval(": _WORDS}).encode()},
    "table": {"results.csv": b"test,outcome\ntests/test_a.py::test_a,passed\n"},
    "pickle": {"state.pkl": pickle.dumps({"pytest": [1, 2, 3]})},
    "picture": {"plot.png": _PNG},
    "archive": {"backup.zip": b"PK\x05\x06" + bytes(18)},
    "profile": {"profile.prof": b"{\x00\x00\x00pytest"},
    "file of macOS": {".DS_Store": b"\x00\x00\x00\x01Bud1"},
    "empty marker": {".gitkeep": b"", "data_of_mine/.gitkeep": b""},
    "name beyond ASCII": {"notizen-größe.txt": "Größe: pytest\n".encode()},
    "old encoding": {"latin.txt": b"caf\xe9 pytest\n"},
    "Windows lines": {"windows.txt": b"pytest\r\nsubprocess.run\r\n"},
}  # fmt: skip
"""Kind -> path -> content; at a path of the base state it is added to what is there."""

IN_PRODUCT: Mapping[str, str] = {
    "comment with the tests' names": "# found with pytest, see tests/test_a.py\n",
    "comment with any word": f"# {_WORDS}\n",
    "string with any word": f"_NOTE = {_WORDS!r}\n",
    "docstring with any word": f'def _note_of_the_fix():\n    """Say that {_WORDS} is a word."""\n',
    "comment beyond ASCII": "# größer als ∞, 修正\n",
    "many blank lines": "\n" * 3_000,
    "long comment": f"# {'x' * 5_000}\n",
    "commented-out code": "# import pytest\n# exec(open('tests/test_a.py').read())\n",
}
"""Kind -> text at the end of each Python file that the fix changes."""


def _added(path: str, content: bytes = b"x = 1\n", mode: int = 0o644) -> FileChange:
    return FileChange(
        path=path, kind=ChangeKind.ADDED, content=content, size=len(content), mode=mode
    )


def _other(path: str, file_type: str, *, size: int = 0, to: str | None = None) -> FileChange:
    return FileChange(
        path=path, kind=ChangeKind.ADDED, file_type=file_type, mode=0o755, size=size, link_target=to
    )


UNGRADABLE: Mapping[str, tuple[FileChange, ...]] = {
    "repository": (
        _other("own", "dir"), _other("own/.git", "dir"), _added("own/.git/HEAD"),
        _added("own/module.py"),
    ),
    "worktree": (_other("tree", "dir"), _added("tree/.git"), _added("tree/module.py")),
    "virtual environment": (
        _other(".venv", "dir"), _added(".venv/pyvenv.cfg"), _other(".venv/lib", "dir"),
        _added(".venv/lib/module.py"),
        _other(".venv/python", "link", to="/usr/bin/python3"),
    ),
    "environment in the repository's folder": (
        _added("pyvenv.cfg"), _other("Scripts", "dir"), _added("Scripts/activate.py"),
    ),
    "pipe, socket, device": tuple(_other(name, "other") for name in ("pipe", "sock", "null")),
    "log of 200 MB": (_other("big.log", "file", size=200_000_000),),
    "log of 9 MB": (_added("large.log", b"1 passed\n" * 1_000_000),),
    "2,100 small files": (
        _other("many", "dir"), *(_added(f"many/{i}.json", b"{}") for i in range(2_100)),
    ),
    "link out": (_other("out", "link", to="/tmp/out"), _other("up", "link", to="../../up")),
    "odd names": tuple(map(_added, ("a\nb.py", "\x1b[2J.py", "w\udcff.py", "x" * 250 + "\t"))),
    "set-id": (_added("tool", b"#!/bin/sh\n", 0o4755), _added("group.py", mode=0o2644)),
}  # fmt: skip
"""Kind -> changes that no patch holds, or that have no room in one."""

CLUTTER: tuple[str, ...] = (*NEW_FILES, *IN_PRODUCT, *UNGRADABLE)
"""Every kind."""


def add_clutter(
    base: Mapping[str, bytes], fix: Mapping[str, FileEntry | None], kinds: Iterable[str]
) -> WorkspaceDiff:
    """Return the changes of a workspace that holds a fix and what is left behind, by kind."""
    after: dict[str, bytes | None] = {
        path: None if entry is None else entry.content for path, entry in fix.items()
    }
    ungradable = [change for kind in kinds for change in UNGRADABLE.get(kind, ())]
    for kind in kinds:
        if kind in IN_PRODUCT:
            for path in fix:
                content = after[path]
                if path.endswith(".py") and content is not None:
                    end = b"" if content.endswith(b"\n") else b"\n"
                    after[path] = content + end + IN_PRODUCT[kind].encode()
        elif kind in NEW_FILES:
            for path, content in NEW_FILES[kind].items():
                before = after.get(path, base.get(path, b""))
                after[path] = (before or b"") + content
    files = (_change(base, path, content) for path, content in sorted(after.items()))
    return WorkspaceDiff(changes=(*files, *ungradable))


def _change(base: Mapping[str, bytes], path: str, content: bytes | None) -> FileChange:
    if content is None:
        return FileChange(path=path, kind=ChangeKind.DELETED)
    kind = ChangeKind.MODIFIED if path in base else ChangeKind.ADDED
    return FileChange(path=path, kind=kind, content=content, size=len(content))
