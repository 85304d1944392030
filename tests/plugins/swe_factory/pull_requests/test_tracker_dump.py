"""Dumps of a tracker: broken ones are named by file and line; pull requests are no issues."""

from pathlib import Path

import pytest
from pull_repository import one_pull

from katgym.errors import UsageError
from katgym_plugin_swe_factory.history.tracker_dump import read_dump


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("repository.json", "{", "repository.json"),
        ("repository.json", "{}", "full_name"),
        ("repository.json", '{"full_name": "../x/y"}', "'owner/name'"),
        ("pulls.jsonl", '{"number": 1}\n{"number": "x"}\n', r"line 2: .*\$\.number"),
        ("pulls.jsonl", '{"number": 1}\n{"number": 1}\n', "line 2: number 1 occurs twice"),
        ("pulls.jsonl", '{"number": 1, "merged_at": "soon"}\n', r"line 1: .*\$\.merged_at"),
        ("pulls.jsonl", "[1]\n", "line 1: a row is a JSON object"),
        ("issues.jsonl", "nope\n", "line 1: not JSON"),
        ("issues.jsonl", None, "holds neither issues.jsonl nor issues.json"),
    ],
)
def test_a_broken_dump_is_named_by_file_and_line(
    tmp_path: Path, name: str, text: str | None, told: str
) -> None:
    dump = one_pull(tmp_path).write_dump()
    if text is None:
        (dump / name).unlink()
    else:
        (dump / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        read_dump(dump)


def test_issues_that_are_pull_requests_are_no_issues(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    made.issue(2, pull_request={"url": "..."})
    assert set(read_dump(made.write_dump()).issues) == {1}
