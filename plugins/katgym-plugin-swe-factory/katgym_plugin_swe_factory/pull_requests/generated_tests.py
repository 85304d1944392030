"""Test modules that somebody wrote for pull requests, by hand or with a model: FOLDER/NUMBER.py.

    DIR/12.py           for pull request 12
    DIR/12/a.py         or several modules

None is believed: a test counts only if it passes with the fix, fails without it, and fails for a
wrong variant of the fix. Not here: those runs (`pull_trial.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from katgym.errors import UsageError
from katgym_plugin_swe_factory.history.changed_paths import is_test_module

_MAX_BYTES = 1 << 20


def read_generated_tests(folder: Path) -> dict[int, tuple[bytes, ...]]:
    """Return pull request number -> modules; `UsageError` for a name that is no number."""
    if not folder.is_dir():
        raise UsageError(f"no such folder of generated tests: {str(folder)!r}")
    found: dict[int, list[bytes]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        number = path.name.removesuffix(".py")
        if not number.isdecimal() or (path.is_file() and path.suffix != ".py"):
            raise UsageError(
                "generated tests are named by pull request, '12.py' or '12/a.py', got"
                f" {str(path)!r}"
            )
        modules = sorted(path.glob("*.py")) if path.is_dir() else [path]
        found.setdefault(int(number), []).extend(_content(module) for module in modules)
    return {number: tuple(modules) for number, modules in found.items() if modules}


def place_tests(
    modules: Iterable[bytes], changed_tests: Iterable[str], known: Collection[str]
) -> dict[str, bytes]:
    """Return path -> module: beside the tests that the pull request changes, else beside others.

    `known` are the paths of the repository; none of them is replaced.
    """
    beside = [p for p in changed_tests if is_test_module(p)]
    beside = beside or sorted((p for p in known if is_test_module(p)), key=lambda p: p.count("/"))
    folder = beside[0].rpartition("/")[0] if beside else "tests"
    paths = (f"{folder}/test_more_{number}.py".lstrip("/") for number in itertools.count(1))
    return dict(zip((path for path in paths if path not in known), modules, strict=False))


def refuse_functions(
    functions: Iterable[tuple[str, str]],
    *,
    failing_on_base: Collection[tuple[str, str]],
    sound_on_gold: Collection[tuple[str, str]],
    killing: Collection[tuple[str, str]],
) -> Mapping[str, str]:
    """Return `path::qualname` -> why a generated test does not count, for those that do not."""
    refused: dict[str, str] = {}
    for name in functions:
        if name not in sound_on_gold:
            why = "does not pass with the fix every time"
        elif name not in failing_on_base:
            why = "passes without the fix"
        elif name not in killing:
            why = "passes with every wrong variant of the fix"
        else:
            continue
        refused["::".join(name)] = why
    return refused


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {str(path)!r}: {e.strerror}") from e
    if len(content) > _MAX_BYTES:
        raise UsageError(
            f"{str(path)!r} has {len(content)} bytes, at most {_MAX_BYTES} are allowed"
        )
    return content
