"""Exercises on files: moving, naming, linking, permissions, age, duplicates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, Folder, Symlink
from katgym_envs.terminal.words import NOUNS, lines

SKILL = Skill("files")


@SKILL.template
def sort_by_extension(rng: random.Random) -> Exercise:
    extensions = rng.sample(["txt", "csv", "md", "log", "json", "xml"], 3)
    names = [f"{noun}.{rng.choice(extensions)}" for noun in rng.sample(NOUNS, rng.randint(5, 9))]
    texts = {name: File(lines(rng, 2)) for name in names}
    target = rng.choice(["sorted", "by-type", "shelf"])
    return Exercise(
        prompt=f"move every file of inbox/ to {target}/EXT/, where EXT is its extension, and remove"
        " the empty inbox/.",
        before={f"inbox/{name}": text for name, text in texts.items()},
        changes={f"inbox/{name}": None for name in names}
        | {f"{target}/{name.rpartition('.')[2]}/{name}": text for name, text in texts.items()},
        script=f'for f in inbox/*; do d={target}/${{f##*.}}; mkdir -p "$d"; mv "$f" "$d/"; done\n'
        "rmdir inbox",
    )


@SKILL.template
def permissions(rng: random.Random) -> Exercise:
    modes = {"sh": rng.choice([0o750, 0o755, 0o700]), "pem": rng.choice([0o600, 0o400])}
    modes["txt"] = rng.choice([0o640, 0o444, 0o664])
    before: dict[str, Entry] = {}
    for noun in rng.sample(NOUNS, rng.randint(5, 8)):
        ending = rng.choice(["sh", "pem", "txt", "bak"])
        folder = rng.choice(["", "etc/", "etc/old/"])
        before[f"{folder}{noun}.{ending}"] = File(lines(rng, 1), mode=rng.choice([0o666, 0o777]))
    before["run.sh"] = File("echo run\n", mode=0o644)
    changes: dict[str, Entry | None] = {
        path: File(entry.text, mode=modes[path.rpartition(".")[2]])
        for path, entry in before.items()
        if isinstance(entry, File) and not path.endswith(".bak")
    }
    asked = ", ".join(f"*.{ending} mode {mode:o}" for ending, mode in modes.items())
    return Exercise(
        prompt=f"give the files at every depth these permissions: {asked}. Others keep theirs.",
        before=before,
        changes=changes,
        script="\n".join(
            f"find . -type f -name '*.{ending}' -exec chmod {mode:o} {{}} +"
            for ending, mode in modes.items()
        ),
    )


@SKILL.template
def rename(rng: random.Random) -> Exercise:
    word = rng.choice(["IMG", "SCAN", "PHOTO", "NOTE"])
    num = rng.randint(4, 8)
    days = [
        datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=rng.randrange(700)) for _ in range(num)
    ]
    before: dict[str, Entry] = {"README.txt": File(lines(rng, 1))}
    changes: dict[str, Entry | None] = {}
    for i, day in enumerate(days, start=rng.randint(1, 400)):
        text = File(lines(rng, 1))
        old = f"{word}_{day:%d-%m-%Y}_{i:04d}.txt"
        before[old] = text
        changes |= {old: None, f"{day:%Y-%m-%d}-{i}.txt": text}
    return Exercise(
        prompt=f"rename each {word}_DD-MM-YYYY_NNNN.txt to YYYY-MM-DD-N.txt, where N is the number"
        " without leading zeros.",
        before=before,
        changes=changes,
        script=f"for f in {word}_*; do\n"
        'IFS=_ read -r _ d n <<< "${f%.txt}"; IFS=- read -r a b c <<< "$d"\n'
        'mv "$f" "$c-$b-$a-$((10#$n)).txt"\ndone',
    )


@SKILL.template
def release_links(rng: random.Random) -> Exercise:
    numbers = {(rng.randint(1, 3), rng.randint(0, 14), rng.randint(0, 12)) for _ in range(7)}
    versions = [".".join(map(str, number)) for number in sorted(numbers)]
    keep = rng.randint(2, 3)
    files = {version: File(f"{version}\n{lines(rng, 1)}") for version in versions}
    before: dict[str, Entry] = {f"releases/{v}/VERSION": file for v, file in files.items()}
    before["current"] = Symlink(f"releases/{versions[0]}")
    changes: dict[str, Entry | None] = {f"releases/{v}/VERSION": None for v in versions[:-keep]}
    changes["current"] = Symlink(f"releases/{versions[-1]}")
    changes["previous"] = Symlink(f"releases/{versions[-2]}")
    return Exercise(
        prompt=f"remove all of releases/ but the {keep} highest versions; let the relative symbolic"
        " links current and previous lead to releases/VERSION of the highest and of the second.",
        before=before,
        changes=changes,
        script=f"ls releases | sort -V | head -n -{keep} | while read -r v; do rm -r releases/$v;"
        " done\nln -sfn releases/$(ls releases | sort -V | tail -n 1) current\n"
        "ln -sfn releases/$(ls releases | sort -V | tail -n 2 | head -n 1) previous",
    )


@SKILL.template
def remove_old(rng: random.Random) -> Exercise:
    limit = datetime(2023, rng.randint(2, 11), rng.randint(2, 27), tzinfo=UTC)
    before: dict[str, Entry] = {}
    gone: dict[str, Entry | None] = {}
    for noun in rng.sample(NOUNS, rng.randint(6, 9)):
        path = f"{rng.choice(['cache', 'cache/deep', 'cache/x'])}/{noun}.tmp"
        days = rng.choice([-1, 1]) * rng.randint(1, 90)
        noon = limit + timedelta(days=days, hours=12)
        before[path] = File(lines(rng, 1), time=int(noon.timestamp()))
        if days < 0:
            gone[path] = None
    old = int((limit - timedelta(days=30)).timestamp())
    before |= {"cache/keep.lock": File("lock\n", time=old), "cache/.x.tmp": File("", time=old)}
    folders = {p.rpartition("/")[0] for p in before}
    return Exercise(
        prompt="remove the *.tmp files below cache/, hidden ones too, that were last changed"
        f" before {limit:%Y-%m-%d} (UTC). Directories and other files stay.",
        before=before,
        changes={**gone, "cache/.x.tmp": None} | {folder: Folder() for folder in folders},
        script=f"find cache -type f -name '*.tmp' ! -newermt '{limit:%Y-%m-%d} 00:00:00 UTC'"
        " -delete",
    )


@SKILL.template
def duplicates(rng: random.Random) -> Exercise:
    texts = [lines(rng, 2) for _ in range(rng.randint(3, 4))]
    names = sorted(f"{noun}.txt" for noun in rng.sample(NOUNS, rng.randint(7, 10)))
    chosen = {name: rng.choice(texts) for name in names}
    first: dict[str, str] = {}
    for name, text in chosen.items():
        first.setdefault(text, name)
    changes: Mapping[str, Entry | None] = {
        name: Symlink(first[text]) for name, text in chosen.items() if first[text] != name
    }
    return Exercise(
        prompt="some files have the same content. Keep the one whose name comes first in the"
        " alphabet, and replace each of the others with a relative symbolic link to it.",
        before={name: File(text) for name, text in chosen.items()},
        changes=changes,
        script="declare -A seen\nfor f in *.txt; do\ns=$(sha256sum < $f)\n"
        'if [ -n "${seen[$s]}" ]; then ln -sf "${seen[$s]}" $f; else seen[$s]=$f; fi\ndone',
    )
