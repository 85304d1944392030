"""Measure which canary candidates fail on correct code, by running pytest on every one.

    python tests/envs/swe/canaries/canary_yield.py inflection simpleeval --per-test 8

Runs strangers' tests on this machine without a sandbox. A process with pytest loaded forks for each
candidate, so one takes little more than its tests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from katgym_envs.swe.canaries import Canary, render
from katgym_envs.swe.packages import SourceTree, open_package
from katgym_plugin_swe_factory.canaries import find_canaries

TIMEOUT_S = 30


@dataclass
class Yield:
    """What came of one package: outcomes by kind, valid canaries by test function."""

    by_kind: Counter[str] = field(default_factory=Counter)
    valid_by_kind: Counter[str] = field(default_factory=Counter)
    valid: dict[str, list[Canary]] = field(default_factory=dict)
    """`path::qualname` of every passing test function -> its canaries that fail it."""

    @property
    def valid_share(self) -> float:
        return sum(self.valid_by_kind.values()) / max(1, sum(self.by_kind.values()))

    def share_with(self, at_least: int) -> float:
        """Return the share of test functions with so many valid canaries."""
        return sum(len(v) >= at_least for v in self.valid.values()) / max(1, len(self.valid))


class _Record:
    """A pytest plugin: function -> outcomes of all phases of its cases."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("[")[0].partition("::")[2]
        self.outcomes[name].append(report.outcome if report.when == "call" else
                                   "error" if report.failed else "")  # fmt: skip


def run_module(tree: SourceTree, folder: Path, path: str, source: bytes) -> Mapping[str, str]:
    """Return function -> "passed" if all its cases passed, else "failed"; {} if none ran."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        _run_in_child(tree, folder, path, source, into)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    outcomes = json.loads(said) if said else {}
    return {
        name: "failed" if {"failed", "error"} & set(seen) else "passed"
        for name, seen in outcomes.items()
        if {"passed", "failed", "error"} & set(seen)
    }


def _run_in_child(tree: SourceTree, folder: Path, path: str, source: bytes, into: int) -> None:
    try:
        signal.alarm(TIMEOUT_S)
        (folder / path).write_bytes(source)
        os.chdir(folder)
        sys.path[:0] = [str(folder / part) for part in tree.package.python_path]
        sys.dont_write_bytecode = True
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        record = _Record()
        arguments = ["-c", os.devnull, "--rootdir", ".", "-q", "-p", "no:cacheprovider", path]
        pytest.main([*arguments, "--tb=no", "-W", "ignore"], plugins=[record])
        os.write(into, json.dumps(record.outcomes).encode())
    finally:
        os._exit(0)


def measure(spec: str, *, per_test: int, modules: int | None = None) -> Yield:
    """Run every chosen candidate of a package's test modules and count."""
    tree = open_package(spec)
    result = Yield()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path, content in tree.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        for path in tree.test_modules[:modules]:
            _measure_module(tree, folder, path, per_test, result)
    return result


def _measure_module(
    tree: SourceTree, folder: Path, path: str, per_test: int, result: Yield
) -> None:
    source = tree.files[path]
    base = run_module(tree, folder, path, source)
    passing = [name for name, outcome in base.items() if outcome == "passed"]
    result.valid |= {f"{path}::{name}": [] for name in passing}
    for canary in find_canaries(source, per_test=per_test):
        outcomes = run_module(tree, folder, path, render(source, [canary.spec]))
        failed = [name for name in passing if outcomes.get(name) == "failed"]
        result.by_kind[f"{canary.role}/{canary.kind}"] += 1
        result.valid_by_kind[f"{canary.role}/{canary.kind}"] += bool(failed)
        for name in failed:
            result.valid[f"{path}::{name}"].append(canary)
    (folder / path).write_bytes(source)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--per-test", type=int, default=8)
    options = parser.parse_args(arguments)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in options.packages:
        found = measure(name, per_test=options.per_test)
        shares = "  ".join(f">={n}: {found.share_with(n):.1%}" for n in (1, 2, 3, 6))
        print(f"{name}: {sum(found.by_kind.values())} candidates, {found.valid_share:.1%} fail on "
              f"correct code; {len(found.valid)} test functions with {shares}")  # fmt: skip
        for kind, count in sorted(found.by_kind.items()):
            print(f"    {kind:28} {count:5} {found.valid_by_kind[kind] / count:7.1%}")
        weak = [test for test, valid in found.valid.items() if len(valid) < 2]
        print("    fewer than 2:", *weak[:40], sep="\n        ")


if __name__ == "__main__":
    main(sys.argv[1:])
