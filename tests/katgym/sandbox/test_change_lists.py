"""Lists of changes on their way from a sandbox, which may send anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from katgym.sandbox.changes import FileChange, parse_changes
from katgym.sandbox.supervisor.change_list import ChangeList


def _parse(row: list[Any], payload: bytes = b"") -> FileChange:
    manifest = json.dumps([row]).encode()
    reply = {"manifest_bytes": len(manifest), "omitted": 0}
    return parse_changes(reply, manifest + payload)[str(row[0])]


def test_what_is_packed_is_parsed_in_order_with_contents() -> None:
    changes = ChangeList()
    for path, size in (("b", 3), ("a", 2), ("c\udcff", 200)):
        changes.add(path, "added", 0o100644, size, None)
    changes.add("l", "added", 0o120777, 7, "over/there")
    reply, payload = changes.pack(
        lambda path, size: path.encode()[:1] * size, max_file_bytes=100, max_bytes=4, most=3
    )
    diff = parse_changes(reply, payload)
    told = [(c.path, c.size, c.content) for c in diff]
    assert told == [("a", 2, b"aa"), ("b", 3, None), ("c\udcff", 200, None)]
    assert diff.num_omitted == 1 and not diff.is_complete


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", 7])
def test_a_path_outside_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="not a path below the workspace"):
        _parse([path, "added", "file", 0o644, 0, None, -1])


def test_unknown_types_and_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="not a type of file: 'device'"):
        _parse(["x", "added", "device", 0o644, 0, None, -1])
    with pytest.raises(ValueError, match="'lost' is not a valid ChangeKind"):
        _parse(["x", "lost", "file", 0o644, 0, None, -1])


def test_contents_that_the_list_does_not_explain_are_refused() -> None:
    assert _parse(["x", "added", "file", 0o644, 2, None, 2], b"12").content == b"12"
    with pytest.raises(ValueError, match="of which the list explains"):
        _parse(["x", "added", "file", 0o644, 2, None, 2], b"123")
    with pytest.raises(ValueError, match="not a list of changes"):
        parse_changes({"omitted": 0}, b"")


def test_what_went_wrong_inside_is_said() -> None:
    with pytest.raises(OSError, match="the diff failed: no memory"):
        parse_changes({"error": "no memory"}, b"")
