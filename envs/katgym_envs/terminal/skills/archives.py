"""Exercises on archives: unpacking, packing, converting, checksums."""

from __future__ import annotations

import hashlib
import random

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Archive, Entry, File
from katgym_envs.terminal.words import NOUNS, lines

SKILL = Skill("archives")


def _members(rng: random.Random, num: int, endings: list[str]) -> dict[str, str]:
    folders = ["", "a/", f"{rng.choice(NOUNS)}/", f"b/{rng.choice(NOUNS)}/"]
    names = rng.sample(NOUNS, num)
    return {
        f"{rng.choice(folders)}{noun}.{endings[i % len(endings)]}": lines(rng, 2)
        for i, noun in enumerate(names)
    }


@SKILL.template
def unpack_some(rng: random.Random) -> Exercise:
    endings = rng.sample(["txt", "csv", "md", "log", "json"], 3)
    members = _members(rng, rng.randint(6, 9), endings)
    name = f"{rng.choice(NOUNS)}.tar.gz"
    kept = {f"out/{m}": File(t) for m, t in members.items() if m.endswith(f".{endings[0]}")}
    return Exercise(
        prompt=f"unpack only the *.{endings[0]} files of {name} to out/, with the directories they"
        " have in the archive. The archive stays.",
        before={name: Archive("tar.gz", members)},
        changes=kept,
        script=f"mkdir out && tar -xzf {name} -C out --wildcards '*.{endings[0]}'",
    )


@SKILL.template
def pack_folder(rng: random.Random) -> Exercise:
    folder = rng.choice(["site", "project", "data"])
    name = f"{rng.choice(NOUNS)}.{rng.choice(['tar.gz', 'tar'])}"
    members = _members(rng, rng.randint(5, 8), ["txt", "log", "md"])
    packed = {f"{folder}/{m}": text for m, text in members.items() if not m.endswith(".log")}
    form = "tar.gz" if name.endswith("gz") else "tar"
    return Exercise(
        prompt=f"pack {folder}/ without its *.log files into {name}, so that all paths in the"
        f" archive begin with {folder}/. The folder stays as it is.",
        before={f"{folder}/{m}": File(text) for m, text in members.items()},
        changes={name: Archive(form, packed)},
        script=f"tar --exclude='*.log' -c{'z' if form == 'tar.gz' else ''}f {name} {folder}",
    )


@SKILL.template
def convert(rng: random.Random) -> Exercise:
    members = _members(rng, rng.randint(4, 7), ["txt", "md"])
    noun = rng.choice(NOUNS)
    old, new = rng.choice([("zip", "tar.gz"), ("tar", "zip"), ("tar.gz", "tar")])
    unpack = (
        f"python3 -m zipfile -e {noun}.zip $t" if old == "zip" else f"tar -xf {noun}.{old} -C $t"
    )
    packer = {
        "zip": f'(cd $t && python3 -m zipfile -c "$OLDPWD/{noun}.zip" *)',
        "tar": f"(cd $t && tar -cf - *) > {noun}.tar",
        "tar.gz": f"(cd $t && tar -czf - *) > {noun}.tar.gz",
    }
    return Exercise(
        prompt=f"turn {noun}.{old} into {noun}.{new} with the same files at the same paths, and"
        f" remove {noun}.{old}.",
        before={f"{noun}.{old}": Archive(old, members)},
        changes={f"{noun}.{old}": None, f"{noun}.{new}": Archive(new, members)},
        script=f"t=$(mktemp -d)\n{unpack}\n{packer[new]}\nrm {noun}.{old}",
    )


@SKILL.template
def join_rotated(rng: random.Random) -> Exercise:
    noun, num = rng.choice(NOUNS), rng.randint(3, 12)
    parts = [lines(rng, 2) for _ in range(num)]
    before: dict[str, Entry] = {
        f"{noun}.log.{i}.gz": Archive("gz", {"": text}) for i, text in enumerate(parts, start=1)
    }
    newest = lines(rng, 2)
    before[f"{noun}.log"] = File(newest)
    return Exercise(
        prompt=f"{noun}.log was rotated: {noun}.log.1.gz is the youngest of the old parts,"
        f" {noun}.log.{num}.gz the oldest. Join all to {noun}.log, the oldest lines first, and"
        " remove the parts.",
        before=before,
        changes={f"{noun}.log.{i}.gz": None for i in range(1, num + 1)}
        | {f"{noun}.log": File("".join(reversed(parts)) + newest)},
        script=f"t=$(mktemp)\nfor i in $(seq {num} -1 1); do zcat {noun}.log.$i.gz >> $t; done\n"
        f"cat {noun}.log >> $t\ncat $t > {noun}.log\nrm {noun}.log.*.gz",
    )


@SKILL.template
def checksums(rng: random.Random) -> Exercise:
    names = sorted(f"{noun}.txt" for noun in rng.sample(NOUNS, rng.randint(6, 9)))
    texts = {name: lines(rng, 1) for name in names}
    sums = [f"{hashlib.sha256(t.encode()).hexdigest()}  {n}" for n, t in texts.items()]
    bad = sorted(rng.sample(names, 2))
    lost = rng.choice([name for name in names if name not in bad])
    before: dict[str, Entry] = {
        n: File(t.replace("a", "o", 1) + "x" if n in bad else t)
        for n, t in texts.items()
        if n != lost
    }
    before["SHA256SUMS"] = File("\n".join(sums) + "\n")
    return Exercise(
        prompt="compare the files with SHA256SUMS. Move those that are not as they were to bad/,"
        " and write the names of those that are missing to missing.txt, one a line.",
        before=before,
        changes=dict.fromkeys(bad)
        | {f"bad/{name}": before[name] for name in bad}
        | {"missing.txt": File(lost)},
        script="mkdir bad\nwhile read -r sum name; do\n"
        'if [ ! -e "$name" ]; then echo "$name" >> missing.txt\n'
        'elif [ "$(sha256sum < "$name")" != "$sum  -" ]; then mv "$name" bad/; fi\n'
        "done < SHA256SUMS",
    )
