"""What is read off a clone that git has made: two states, patches, issues and hints.

Not here: filters (`test_pull_filters.py`), dumps and recipes (`test_import_inputs.py`).
"""

from pathlib import Path
from typing import Any

import pytest
from pull_preparation import prepare, refused
from pull_repository import (
    BASE,
    FIX,
    FIXED_PLURAL,
    PLURAL_TESTS,
    SOURCE,
    TESTS,
    PullRepository,
    one_pull,
)

from katgym.errors import UsageError
from katgym_plugin_swe_factory.history.commit_range import commit_range
from katgym_plugin_swe_factory.history.git_clone import GitClone
from katgym_plugin_swe_factory.history.tracker_dump import read_dump


def test_merged_squashed_and_rebased_pulls_have_the_same_two_states(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for how in ("merge", "squash", "rebase"):
        with subtests.test(how):
            made = PullRepository(tmp_path / how)
            base = made.commit({"other.txt": "x\n"}, "before")
            made.issue(1)
            made.pull(2, closes=1, how=how)
            made.commit({"later.txt": "x\n"}, "after")
            found = prepare(made, 2)
            assert found.diff.range.base == base
            assert set(found.diff.before) == set(FIX)
            assert found.states.base_files["tests/test_words.py"] == TESTS.encode()
            assert found.states.hidden_files == {"tests/test_words.py": PLURAL_TESTS.encode()}
            assert found.instance_id == "acme__wordkit-2"


def test_a_merge_commit_does_not_count_what_came_to_main_meanwhile(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.git("checkout", "-q", "-b", "side")
    made.commit(FIX, "fix")
    head = made.git("rev-parse", "HEAD")
    made.git("checkout", "-q", "main")
    base = made.commit({"meanwhile.py": "A = 1\n"}, "meanwhile")
    made.git("merge", "-q", "--no-ff", "-m", "Merge", head)
    made.issue(1)
    made.pulls.append(
        {"number": 2, "body": "closes #1", "merged_at": "2025-03-01T12:00:00Z", "comments": 1,
         "merge_commit_sha": made.git("rev-parse", "HEAD"), "head": {"sha": head}}
    )  # fmt: skip
    found = prepare(made, 2)
    assert found.diff.range.base == base
    assert set(found.diff.after) == set(FIX)
    assert "meanwhile.py" in found.states.workspace


def test_a_rebased_pull_whose_head_is_gone_is_counted_back(tmp_path: Path) -> None:
    made = one_pull(tmp_path, how="rebase", head={"sha": "12" * 20})
    dump = read_dump(made.write_dump())
    found = commit_range(GitClone(made.clone), dump.pulls[2])
    assert found.base == made.pulls[0]["base"]["sha"]


def test_a_clone_that_lacks_the_pull_or_is_none_says_so(
    sound_pull: PullRepository, tmp_path: Path
) -> None:
    lost = {"merge_commit_sha": "ab" * 20, "head": {"sha": "cd" * 20}}
    told = refused(sound_pull.told_otherwise(tmp_path, **lost), 2)
    assert "clone: the clone has neither the merge commit nor the head" in told
    with pytest.raises(UsageError, match="no git clone at"):
        GitClone(tmp_path)


def test_documents_are_in_neither_patch(tmp_path: Path) -> None:
    files = {**FIX, "CHANGELOG.md": "plural of city\n", "docs/a.png": b"\0\1", "data.txt": "a\n"}
    found = prepare(one_pull(tmp_path, files), 2)
    assert "CHANGELOG" not in found.patch + found.test_patch
    assert "docs/a.png" not in found.patch
    assert "+++ b/data.txt" in found.patch
    assert "+++ b/wordkit/__init__.py" in found.patch
    assert "+++ b/tests/test_words.py" in found.test_patch
    assert set(found.states.gold) == {"wordkit/__init__.py", "data.txt"}


def test_a_renamed_file_is_deleted_and_added(tmp_path: Path) -> None:
    made = PullRepository(tmp_path, {**BASE, "wordkit/old.py": "A = 1\nB = 2\nC = 3\n"})
    made.issue(1)
    made.pull(
        2, {**FIX, "wordkit/old.py": None, "wordkit/new.py": "A = 1\nB = 2\nC = 3\n"}, closes=1
    )
    found = prepare(made, 2)
    assert found.states.gold["wordkit/old.py"] is None
    new = found.states.gold["wordkit/new.py"]
    assert new is not None
    assert new.content == b"A = 1\nB = 2\nC = 3\n"
    after = found.states.after(found.recipe)
    assert "wordkit/new.py" in after
    assert "wordkit/old.py" not in after


def test_an_executable_bit_is_part_of_the_patch(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1)
    (made.clone / "wordkit/__init__.py").chmod(0o755)
    made.pull(2, closes=1)
    found = prepare(made, 2)
    assert "old mode 100644\nnew mode 100755\n" in found.patch


LINKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"title": "Resolve #1: plurals"}, {}),
    ({"body": "Closes: https://github.com/Acme/WordKit/issues/1"}, {}),
    ({"commits": [{"sha": "", "commit": {"message": "x\n\nFixes GH-1"}}]}, {}),
    ({"timeline": [{"event": "connected", "source": {"issue": {"number": 1}}}]}, {}),
    ({}, {"timeline": [{"event": "connected", "source": {"issue": {"number": 2}}}]}),
]


def test_an_issue_is_linked_by_keyword_or_event_or_closed_by_the_merge(
    sound_pull: PullRepository, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    merge = sound_pull.pulls[0]["merge_commit_sha"]
    closed = {"timeline": [{"event": "closed", "commit_id": merge}]}
    for pull, issue in [*LINKS, ({}, closed)]:
        with subtests.test(pull=pull, issue=issue):
            made = sound_pull.told_otherwise(tmp_path, **{"body": "Something better", **pull})
            made.issues = []
            made.issue(1, **issue)
            statement = prepare(made, 2).statement
            assert statement.startswith("Odd result 1\n\n") and "a wrong plural" in statement


def test_hints_are_what_people_said_before_the_pull_without_the_fix(
    sound_pull: PullRepository, tmp_path: Path
) -> None:
    made = sound_pull.told_otherwise(tmp_path)
    made.issues = []
    day = "2025-02-01T00:00:00Z"
    made.issue(
        1,
        comments=[
            {"body": "Also `pony`.", "created_at": day, "user": {"login": "bo"}},
            {"body": 'Try\n    return word[:-1] + "ies"', "created_at": day},
            {"body": "Stale.", "created_at": day, "user": {"login": "stale[bot]"}},
            {"body": "Thanks!", "created_at": "2025-04-01T00:00:00Z"},
        ],
    )
    assert prepare(made, 2).hints == "Also `pony`."


def test_reading_a_clone_runs_nothing_that_it_brings_along(tmp_path: Path) -> None:
    made = one_pull(tmp_path, {**FIX, ".gitattributes": "*.py diff=evil filter=evil\n"})
    ran = tmp_path / "ran"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "core.sshCommand",
                 "diff.evil.textconv", "diff.evil.command", "filter.evil.smudge",
                 "filter.evil.clean", "uploadpack.packObjectsHook"):  # fmt: skip
        made.git("config", name, str(script))
    hooks = made.clone / ".git/hooks"
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    assert prepare(made, 2).states.base_files["wordkit/__init__.py"] == SOURCE.encode()
    assert not ran.exists()


def test_generated_tests_stand_in_for_the_pulls_own(tmp_path: Path) -> None:
    made = one_pull(tmp_path, {"wordkit/__init__.py": FIXED_PLURAL})
    found = prepare(made, 2, generated={2: (b"def test_a(): pass\n",)})
    assert found.states.generated == {"tests/test_more_1.py"}
    assert found.states.hidden_files["tests/test_more_1.py"] == b"def test_a(): pass\n"
    assert "tests/test_more_1.py" not in found.states.workspace
