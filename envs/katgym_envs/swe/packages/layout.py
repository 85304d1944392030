"""Guesses what is product and what are tests in the sdist of a package that is not in the table.

Not here: the table (`catalogue.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from email.parser import BytesHeaderParser

from katgym.errors import UsageError
from katgym_envs.swe.packages.catalogue import KnownPackage
from katgym_envs.swe.packages.sdist import Sdist

_TEST_FOLDERS = ("tests", "test", "testing")
_TEST_MODULE = re.compile(r"(.*/)?(test_[^/]*|[^/]*_test|tests?)\.py")
_NOT_PRODUCT = ("setup.py", "conftest.py", "noxfile.py", "tasks.py", "docs/", "doc/", "examples/")


def guess_package(sdist: Sdist, files: Mapping[str, bytes]) -> KnownPackage:
    """Return the entry a table would have for this sdist; the requirements are none but pytest.

    Raises `UsageError` when it has no Python product or no tests.
    """
    modules = [path for path in files if path.endswith(".py")]
    tests = [path for path in modules if _TEST_MODULE.fullmatch(path)]
    label = f"{sdist.name}=={sdist.version}"
    if not tests:
        raise UsageError(f"the sdist of {label} holds no tests, so no task can be made from it")
    tops = set()
    for path in tests:
        parts = path.split("/")
        folders = [i for i, part in enumerate(parts[:-1]) if part in _TEST_FOLDERS]
        tops.add("/".join(parts[: folders[0] + 1]) if folders else path)
    roots = tuple(sorted(tops))
    base = "src/" if any(path.startswith("src/") for path in modules) else ""
    product = [
        path.removeprefix(base)
        for path in modules
        if path.startswith(base)
        and not is_below(path, roots)
        and not path.startswith(_NOT_PRODUCT)
        and not path.endswith("/conftest.py")
    ]
    source = sorted({base + path.split("/", 1)[0] for path in product})
    if not source:
        raise UsageError(f"the sdist of {label} holds no Python modules besides its tests")
    metadata = BytesHeaderParser().parsebytes(files.get("PKG-INFO", b""))
    named = metadata.get("License-Expression") or metadata.get("License") or ""
    return KnownPackage(
        name=sdist.name,
        version=sdist.version,
        sha256=sdist.sha256,
        license=str(named).split("\n")[0],
        source=tuple(source),
        tests=tuple(sorted(tests)),
        test_roots=roots,
        python_path=("src", ".") if base else (".",),
    )


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path is one of the roots or in one of them."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
