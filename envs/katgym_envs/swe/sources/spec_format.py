"""Tasks of packages as data: one file a package and one line a task.

The package's sdist is named by its sha256, and a task holds what differs from it; no other source
of the package is kept. Tests are numbered as `PackageSpec.node_ids()` lists them. Both files are
the grader's: an edit tells where the bug is. Not here: reading them (`mutation_set.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym_envs.swe.hidden import TestFunction

SPEC_SCHEMA = 2


class CanarySpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A wrong-value change to a test file that was seen to fail on correct code."""

    path: str
    spec: dict[str, Any]
    """What `canaries/` serialises."""
    fails: tuple[int, ...]
    """Numbers of the tests that fail with it."""
    places: tuple[str, ...]
    """Where each of them fails (`TestResult.place`); one for all if it is the same."""
    near_for: tuple[str, ...] = ()
    """Ids of the tasks it is a near canary of (`ValidCanary.near_for`)."""

    def place_of(self, index: int) -> str:
        """Return the place of `fails[index]`."""
        return self.places[0] if len(self.places) == 1 else self.places[index]


class PackageSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One package: where it comes from, its sound tests, its canaries.

    Example:
        PackageSpec(name="inflection", version="0.5.1", sha256="1a29...", license="MIT",
                    requirements=("pytest==9.2.0",), source_roots=("inflection.py",),
                    test_files=("test_inflection.py",),
                    tests={"test_inflection.py": {"test_humanize": ("a-A", "b-B")}})
    """

    schema: int = SPEC_SCHEMA
    name: str
    version: str
    sha256: str
    """Of the sdist; of the tree for the toy repository, which has no sdist."""
    license: str = ""
    requirements: tuple[str, ...]
    """Pinned."""
    python_path: tuple[str, ...] = (".",)
    source_roots: tuple[str, ...]
    test_files: tuple[str, ...]
    """Test modules."""
    test_roots: tuple[str, ...] = ()
    """Files and folders that belong to the tests: modules, conftest files, data."""
    tests: dict[str, dict[str, tuple[str, ...]]]
    """Test module -> function -> ids of its cases: what passed in all runs on correct code."""
    flaky: tuple[str, ...] = ()
    """Node ids that did not."""
    timeout_s: float = 60.0
    canaries: tuple[CanarySpec, ...] = ()

    @property
    def key(self) -> str:
        """Name and version: what tasks refer to."""
        return f"{self.name}-{self.version}"

    @cached_property
    def functions(self) -> tuple[TestFunction, ...]:
        """Every sound test function, in the order of collection."""
        return list_functions(self.tests)

    @cached_property
    def node_ids(self) -> tuple[str, ...]:
        """Every sound test; a test's number is its place here."""
        return node_ids(self.tests)


def list_functions(
    tests: Mapping[str, Mapping[str, tuple[str, ...]]],
) -> tuple[TestFunction, ...]:
    """Return the functions of `PackageSpec.tests`, in order."""
    return tuple(
        TestFunction(path=path, qualname=name, case_ids=cases)
        for path, functions in tests.items()
        for name, cases in functions.items()
    )


def node_ids(tests: Mapping[str, Mapping[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the node ids of `PackageSpec.tests`, in order."""
    return tuple(node for function in list_functions(tests) for node in function.node_ids())


class FileEdit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of a file's bytes, and what stands in its place.

    Example:
        FileEdit(start=812, end=814, text="<=")
    """

    start: int
    end: int
    text: str
    """Bytes as Latin-1 text: byte 0xe9 is "\\xe9"."""


def apply_edits(content: bytes, edits: Sequence[FileEdit]) -> bytes:
    """Return a file with its edits, in order and apart; `UsageError` if they do not fit."""
    parts, at = [], 0
    for edit in edits:
        if not at <= edit.start <= edit.end <= len(content):
            raise UsageError(f"{edit!r} does not fit {len(content)} bytes edited up to {at}")
        parts += [content[at : edit.start], edit.text.encode("latin-1")]
        at = edit.end
    return b"".join((*parts, content[at:]))


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task: a package with a bug, whose tests are not all visible.

    Example:
        TaskSpec(id="inflection-0.5.1-3fa9c0", package="inflection-0.5.1", split="train",
                 edits={"inflection.py": (FileEdit(812, 814, "<="),)},
                 fail_to_pass=(4, 5), statement="...", workspace_sha256="ab12...")
    """

    id: str
    package: str
    """`PackageSpec.key`."""
    split: str = "train"
    edits: dict[str, tuple[FileEdit, ...]]
    """Path -> what the base state has in place of the package's bytes: the bug, and the test files
    without the hidden tests."""
    fail_to_pass: tuple[int, ...]
    base_places: tuple[str, ...] = ()
    """Where each of them fails on the base state."""
    ungraded: tuple[int, ...] = ()
    """Tests that the bug breaks and that are not graded: they have no canary, or are unsteady."""
    statement: str
    workspace_sha256: str
    timeout_s: float = 60.0
    """See `KatgymPart.timeout_s`."""
    validation: dict[str, Any] = {}
    """See `KatgymPart.validation`."""

    def places(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return FAIL_TO_PASS node id -> where it fails on the base state; nodes: all tests'."""
        if not self.base_places:
            return {}
        numbered = zip(self.fail_to_pass, self.base_places, strict=True)
        return {nodes[number]: place for number, place in numbered}
