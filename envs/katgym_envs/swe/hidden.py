"""The grader's side of a task: gold patch, graded tests, their files, the canaries.

Never put any of it into a `katgym.Task`, an observation, a sandbox an agent runs in, or a log.
Not here: making it (`katgym_plugin_swe_factory`), reading it from disk (`task_source.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFunction:
    """One graded test function and its cases in the order pytest collects them.

    Example:
        TestFunction(path="tests/test_a.py", qualname="TestA::test_b", case_ids=("1-x", "2-y"))

    Its node ids are `path::qualname[case]`; `case_ids` is `("",)` without parametrisation.
    """

    __test__ = False

    path: str
    qualname: str
    case_ids: tuple[str, ...] = ("",)

    def node_ids(self) -> tuple[str, ...]:
        """Return pytest's node ids, one a case."""
        base = f"{self.path}::{self.qualname}"
        return tuple(f"{base}[{case}]" if case else base for case in self.case_ids)


def split_node_id(node_id: str) -> tuple[str, str, str]:
    """Return path, qualname and case: `t.py::TestA::test_b[1-x]` is in `t.py`, of case `1-x`."""
    path, _, name = node_id.partition("::")
    qualname, bracket, case = name.partition("[")
    return path, qualname, case.removesuffix("]") if bracket else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidCanary:
    """A wrong-value change to a test file that was seen to fail on correct code.

    `spec` is what `canaries/` serialises. `fails` are the node ids that fail with it, all others of
    the file staying as they are.
    """

    path: str
    spec: Mapping[str, object]
    fails: frozenset[str]
    places: Mapping[str, str] = field(default_factory=dict)
    """Node id -> where it fails on correct code (`TestResult.place`)."""
    near_for: frozenset[str] = frozenset()
    """Ids of the tasks it is a near canary of: its value is as like what their base state computes
    as the right value is. Only these use it. Empty: any task may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTests:
    """The grader's side of one task.

    Example:
        HiddenTests(instance_id="toy-1", gold_patch="--- a/x.py\\n...",
                    fail_to_pass=("t.py::test_a",), pass_to_pass=("t.py::test_b",),
                    files={"t.py": b"def test_a(): ..."})
    """

    instance_id: str
    gold_patch: str
    fail_to_pass: tuple[str, ...]
    """pytest node ids."""
    pass_to_pass: tuple[str, ...]
    files: Mapping[str, bytes]
    """Workspace path -> content: test modules and what they need (conftest, data, helpers). They
    replace whatever the agent left at these paths."""
    executables: frozenset[str] = frozenset()
    """Those of `files` that are executable."""
    test_modules: tuple[str, ...] = ()
    """Those of `files` that hold graded tests, and are put in under random names."""
    functions: tuple[TestFunction, ...] = ()
    """Every graded function of `test_modules`."""
    canaries: tuple[ValidCanary, ...] = ()
    base_places: Mapping[str, str] = field(default_factory=dict)
    """FAIL_TO_PASS node id -> where it fails on the base state; the grader takes canaries that fail
    at the same place. Empty: any canary of the test."""
    protected_paths: tuple[str, ...] = ()
    timeout_s: float = 60.0
    """See `KatgymPart.timeout_s`."""
    gold_files: Mapping[str, bytes] = field(default_factory=dict)
    """Changed product files as gold leaves them; for edit distance."""

    def key(self) -> str:
        """Return a text that is the same for the same task with the same gold and files."""
        digest = hashlib.sha256(repr((self.gold_patch, self.fail_to_pass)).encode())
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + b"\0" + content + b"\0")
        return f"{self.instance_id}:{digest.hexdigest()}"

    @property
    def own_canaries(self) -> tuple[ValidCanary, ...]:
        """Return the canaries that this task may use: not those near another task's base state."""
        return tuple(c for c in self.canaries if not c.near_for or self.instance_id in c.near_for)
