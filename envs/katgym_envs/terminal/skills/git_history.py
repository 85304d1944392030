"""Exercises in a git repository: branches, merges, history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, GitCommit, GitRepository
from katgym_envs.terminal.words import NOUNS, lines, sentence

SKILL = Skill("git")
_VERBS = ("Add", "Rework", "Shorten", "Explain", "Sort", "Tidy", "Extend", "Rename")


@dataclass(slots=True)
class _History:
    """A line of commits on main, and what one of them changed."""

    commits: list[GitCommit]
    names: list[str]
    """Files of the first commit."""

    @property
    def files(self) -> Mapping[str, str]:
        return self.commits[-1].files


def _history(rng: random.Random, num: int) -> _History:
    names = [f"{noun}.txt" for noun in rng.sample(NOUNS, 3)]
    files = {name: lines(rng, 2) for name in names}
    commits = [GitCommit("Start", files)]
    for i in range(1, num):
        files = {**files, f"{rng.choice(NOUNS)}-{i}.txt": lines(rng, 1)}
        commits.append(GitCommit(_subject(rng, i), files, (i - 1,)))
    return _History(commits, names)


def _subject(rng: random.Random, i: int) -> str:
    return f"{rng.choice(_VERBS)} {rng.choice(NOUNS)} {i}"


def _exercise(prompt: str, before: GitRepository, after: GitRepository, script: str) -> Exercise:
    """Return an exercise on `repo/`, whose files are those of the branch that is checked out."""
    old = before.commits[before.branches[before.head]].files
    new = after.commits[after.branches[after.head]].files
    changes: dict[str, Entry | None] = {"repo/.git": after}
    changes |= {f"repo/{path}": None for path in old if path not in new}
    changes |= {f"repo/{p}": File(text) for p, text in new.items() if old.get(p) != text}
    return Exercise(
        prompt=f"repo/ is a git repository. {prompt}",
        before={"repo/.git": before} | {f"repo/{path}": File(text) for path, text in old.items()},
        changes=changes,
        script=f"cd repo\n{script}",
    )


@SKILL.template
def commit_on_branch(rng: random.Random) -> Exercise:
    history = _history(rng, rng.randint(2, 4))
    branch, subject = f"{rng.choice(NOUNS)}-{rng.randint(1, 99)}", sentence(rng, num_words=4)
    name, line = rng.choice(history.names), sentence(rng)
    tip = len(history.commits) - 1
    before = GitRepository(tuple(history.commits), {"main": tip})
    made = GitCommit(subject, {**history.files, name: history.files[name] + line + "\n"}, (tip,))
    return _exercise(
        f"From main, make a branch {branch} with one commit that adds the line `{line}` at the end"
        f" of {name}, with the message `{subject}`. In the end main is checked out again,"
        " unchanged.",
        before,
        GitRepository((*history.commits, made), {"main": tip, branch: tip + 1}),
        f"git checkout -q -b {branch}\necho '{line}' >> {name}\n"
        f"git commit -q -a -m '{subject}'\ngit checkout -q main",
    )


@SKILL.template
def merge(rng: random.Random) -> Exercise:
    history = _history(rng, rng.randint(3, 5))
    tip, branch = len(history.commits) - 1, rng.choice(NOUNS)
    base = rng.randrange(tip)
    name = history.names[0]
    text = history.commits[base].files[name] + sentence(rng) + "\n"
    side = GitCommit(_subject(rng, 90), {**history.commits[base].files, name: text}, (base,))
    before = GitRepository((*history.commits, side), {"main": tip, branch: tip + 1})
    subject = f"Merge {branch} for {rng.choice(NOUNS)}"
    made = GitCommit(subject, {**history.files, name: text}, (tip, tip + 1))
    return _exercise(
        f"Merge the branch {branch} into main with a merge commit whose message is `{subject}`,"
        " then delete the branch.",
        before,
        GitRepository((*before.commits, made), {"main": tip + 2}),
        f"git merge -q --no-ff -m '{subject}' {branch}\ngit branch -q -d {branch}",
    )


@SKILL.template
def revert(rng: random.Random) -> Exercise:
    history = _history(rng, rng.randint(4, 6))
    place = rng.randrange(1, len(history.commits) - 1)
    bad = history.commits[place]
    (added,) = bad.files.keys() - history.commits[place - 1].files.keys()
    subject = f"Take back {bad.subject}"
    tip = len(history.commits) - 1
    left = {path: text for path, text in history.files.items() if path != added}
    return _exercise(
        f"The commit `{bad.subject}` was a mistake. Undo what it did in one new commit on main,"
        f" with the message `{subject}`; the history stays.",
        GitRepository(tuple(history.commits), {"main": tip}),
        GitRepository((*history.commits, GitCommit(subject, left, (tip,))), {"main": tip + 1}),
        f"git revert --no-commit $(git log --format=%h --grep='^{bad.subject}$')\n"
        f"git commit -q -m '{subject}'",
    )


@SKILL.template
def tag_first(rng: random.Random) -> Exercise:
    history = _history(rng, 3)
    word, name = f"{rng.choice(NOUNS)}{rng.randint(10, 99)}", history.names[0]
    commits = list(history.commits)
    for i in range(3, rng.randint(6, 8)):
        text = commits[-1].files[name] + (f"the {word} is here\n" if i == 4 else lines(rng, 1))
        commits.append(GitCommit(_subject(rng, i), {**commits[-1].files, name: text}, (i - 1,)))
    tag = f"v{rng.randint(1, 9)}.{rng.randint(0, 20)}"
    tip = len(commits) - 1
    return _exercise(
        f"Put the tag {tag} on the commit that brought the word {word} into {name}.",
        GitRepository(tuple(commits), {"main": tip}),
        GitRepository(tuple(commits), {"main": tip}, tags={tag: 4}),
        f"git tag {tag} $(git log --format=%h -S{word} -- {name} | tail -n 1)",
    )


@SKILL.template
def restore(rng: random.Random) -> Exercise:
    history = _history(rng, rng.randint(3, 5))
    commits, name = list(history.commits), history.names[1]
    tip = len(commits)
    left = {path: text for path, text in history.files.items() if path != name}
    commits.append(GitCommit(_subject(rng, 50), left, (tip - 1,)))
    commits.append(GitCommit(_subject(rng, 51), {**left, "more.txt": lines(rng, 1)}, (tip,)))
    subject = f"Bring back {name}"
    whole = {**commits[-1].files, name: history.files[name]}
    return _exercise(
        f"The file {name} was removed in an earlier commit. Bring it back as it last was, in a"
        f" commit on main with the message `{subject}`.",
        GitRepository(tuple(commits), {"main": tip + 1}),
        GitRepository((*commits, GitCommit(subject, whole, (tip + 1,))), {"main": tip + 2}),
        f"c=$(git log --diff-filter=D --format=%h -- {name})\n"
        f"git checkout -q $c^ -- {name}\ngit commit -q -m '{subject}'",
    )


@SKILL.template
def cherry_pick(rng: random.Random) -> Exercise:
    history = _history(rng, rng.randint(2, 4))
    commits, branch = list(history.commits), rng.choice(NOUNS)
    tip = len(commits) - 1
    for i in range(rng.randint(3, 4)):
        parent = len(commits) - 1
        text = {f"{rng.choice(NOUNS)}-{i}b.txt": lines(rng, 1)}
        commits.append(GitCommit(_subject(rng, 70 + i), {**commits[-1].files, **text}, (parent,)))
    place = rng.randrange(tip + 2, len(commits))
    picked = commits[place]
    (added,) = picked.files.keys() - commits[place - 1].files.keys()
    made = GitCommit(picked.subject, {**history.files, added: picked.files[added]}, (tip,))
    refs = {"main": tip, branch: len(commits) - 1}
    return _exercise(
        f"Of the branch {branch}, take over only the commit `{picked.subject}` to main, with the"
        " same message.",
        GitRepository(tuple(commits), refs),
        GitRepository((*commits, made), {**refs, "main": len(commits)}),
        f"git cherry-pick $(git log --format=%h --grep='^{picked.subject}$' {branch}) > /dev/null",
    )


@SKILL.template
def conflict(rng: random.Random) -> Exercise:
    history = _history(rng, 2)
    name, branch, key = history.names[0], rng.choice(NOUNS), rng.choice(NOUNS)
    ours, theirs = rng.sample(range(10, 99), 2)

    def with_value(value: int) -> Mapping[str, str]:
        return {**history.files, name: f"{key} = {value}\n{history.files[name]}"}

    commits = (
        *history.commits,
        GitCommit(_subject(rng, 2), with_value(ours), (1,)),
        GitCommit(_subject(rng, 3), with_value(theirs), (1,)),
    )
    subject = f"Merge {branch}, settle {key}"
    made = GitCommit(subject, with_value(ours + theirs), (2, 3))
    refs = {"main": 2, branch: 3}
    return _exercise(
        f"Merge the branch {branch} into main. Both set {key} in {name}; in the merge commit its"
        f" value is the sum of the two, once, and the message is `{subject}`. Keep the branch.",
        GitRepository(commits, refs),
        GitRepository((*commits, made), {**refs, "main": 4}),
        f"git merge -q {branch} > /dev/null || true\ngit checkout -q --ours {name}\n"
        f"sed -i 's/^{key} = .*/{key} = {ours + theirs}/' {name}\n"
        f"git add {name}\ngit commit -q -m '{subject}'",
    )
