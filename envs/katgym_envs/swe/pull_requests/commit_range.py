"""Which two commits a merged pull request lies between: its base state and its gold state.

Not here: reading them (`git_clone.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym_envs.swe.pull_requests.git_clone import GitClone, GitError
from katgym_envs.swe.pull_requests.tracker_dump import PullRequest


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
        return _from_head(clone, pull)
    commit = clone.commit(merge)
    if not commit.parents:
        raise GitError(f"merge commit {merge!r} has no parent: the clone may be shallow")
    if len(commit.parents) > 1 or pull.num_commits == 1:
        return CommitRange(base=commit.parents[0], gold=merge)
    if head and clone.has_commit(head):
        return _from_one_parent(clone, pull, merge, head, commit.parents[0])
    if pull.num_commits == 0 or _is_squashed(commit.message, pull):
        return CommitRange(base=commit.parents[0], gold=merge)
    return CommitRange(base=_ancestor(clone, merge, pull.num_commits), gold=merge)


def _from_head(clone: GitClone, pull: PullRequest) -> CommitRange:
    if not (pull.head.sha and pull.base.sha):
        raise GitError("neither the merge commit nor base and head are known")
    for name, revision in (("base", pull.base.sha), ("head", pull.head.sha)):
        if not clone.has_commit(revision):
            raise GitError(f"the clone has neither the merge commit nor the {name} {revision!r}")
    base = clone.merge_base(pull.base.sha, pull.head.sha)
    if base is None:
        raise GitError("base and head have no common ancestor")
    return CommitRange(base=base, gold=pull.head.sha)


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
    if set(clone.changed(start, head)) == set(clone.changed(parent, merge)):
        return CommitRange(base=parent, gold=merge)
    return CommitRange(base=_ancestor(clone, merge, pull.num_commits or 1), gold=merge)


def _is_squashed(message: str, pull: PullRequest) -> bool:
    """Return whether a message is one GitHub writes for a squash: the title, then the number."""
    return message.split("\n", 1)[0].rstrip().endswith(f"(#{pull.number})")


def _ancestor(clone: GitClone, revision: str, num: int) -> str:
    for _ in range(num):
        parents = clone.commit(revision).parents
        if not parents:
            raise GitError("the clone's history is shorter than the pull request. Is it shallow?")
        revision = parents[0]
    return revision
