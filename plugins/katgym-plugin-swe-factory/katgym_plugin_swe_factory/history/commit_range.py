"""The two commits that a merged pull request lies between: its base and its gold state.

Not here: reading them (`git_clone.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym_plugin_swe_factory.history.git_clone import GitClone, GitError
from katgym_plugin_swe_factory.history.tracker_dump import PullRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRange:
    """The states before and after a pull request."""

    base: str
    gold: str


def commit_range(clone: GitClone, pull: PullRequest) -> CommitRange:
    """Return the range, or raise `GitError` if the clone does not tell it.

    A merge commit lies between its first parent and itself. A squashed pull request is one commit.
    One that was rebased or fast-forwarded is the last of several: if the clone has its head, they
    are counted from where it left the base branch, else the dump has to say how many there are.
    """
    merge, head = pull.merge_commit_sha or "", pull.head.sha
    if not merge or not clone.has_commit(merge):
        # Without the merge commit, what the branch added since it left its base is the range.
        if not (head and pull.base.sha):
            raise GitError("neither the merge commit nor base and head are known")
        for name, revision in (("base", pull.base.sha), ("head", head)):
            if not clone.has_commit(revision):
                raise GitError(
                    f"the clone has neither the merge commit nor the {name} {revision!r}"
                )
        base = clone.merge_base(pull.base.sha, head)
        if base is None:
            raise GitError("base and head have no common ancestor")
        return CommitRange(base=base, gold=head)
    commit = clone.commit(merge)
    if not commit.parents:
        raise GitError(f"merge commit {merge!r} has no parent: the clone may be shallow")
    if len(commit.parents) > 1 or pull.num_commits == 1:
        return CommitRange(base=commit.parents[0], gold=merge)
    if head and clone.has_commit(head):
        return _from_one_parent(clone, pull, merge, head, commit.parents[0])
    # GitHub's message for a squash is the title, then the number.
    if pull.num_commits == 0 or (
        commit.message.split("\n", 1)[0].rstrip().endswith(f"(#{pull.number})")
    ):
        return CommitRange(base=commit.parents[0], gold=merge)
    return CommitRange(base=_ancestor(clone, merge, pull.num_commits), gold=merge)


def _from_one_parent(
    clone: GitClone, pull: PullRequest, merge: str, head: str, parent: str
) -> CommitRange:
    """Tell a squashed pull request from a rebased one by what they change."""
    start = clone.merge_base(parent, head)
    if start is None:
        return CommitRange(base=parent, gold=merge)
    if head == merge or start == head:  # fast-forwarded: its commits are on the base branch
        if pull.base.sha and clone.has_commit(pull.base.sha):
            left = clone.merge_base(pull.base.sha, head)
            if left is not None and left != head:
                return CommitRange(base=left, gold=merge)
        return CommitRange(base=_ancestor(clone, merge, pull.num_commits or 1), gold=merge)
    if set(clone.list_changes(start, head)) == set(clone.list_changes(parent, merge)):
        return CommitRange(base=parent, gold=merge)
    return CommitRange(base=_ancestor(clone, merge, pull.num_commits or 1), gold=merge)


def _ancestor(clone: GitClone, revision: str, num: int) -> str:
    for _ in range(num):
        parents = clone.commit(revision).parents
        if not parents:
            raise GitError("the clone's history is shorter than the pull request. Is it shallow?")
        revision = parents[0]
    return revision
