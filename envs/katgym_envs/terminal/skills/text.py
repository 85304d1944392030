"""Exercises on text: searching, replacing, counting, cutting."""

from __future__ import annotations

import random
import re
from collections import Counter

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File
from katgym_envs.terminal.words import NOUNS, PEOPLE, lines, sentence

SKILL = Skill("text")


@SKILL.template
def addresses(rng: random.Random) -> Exercise:
    hosts = [f"{noun}.example" for noun in rng.sample(NOUNS, 3)]
    known = [f"{rng.choice(PEOPLE)}{rng.randint(1, 99)}@{rng.choice(hosts)}" for _ in range(8)]
    before: dict[str, Entry] = {}
    seen: set[str] = set()
    for noun in rng.sample(NOUNS, 4):
        used = rng.sample(known, 3)
        seen.update(used)
        text = "".join(f"{sentence(rng)} Write to <{address}> today.\n" for address in used)
        before[f"mail/{noun}.txt"] = File(text)
    return Exercise(
        prompt="write the different e-mail addresses that occur in mail/*.txt to addresses.txt, one"
        " a line, sorted by character codes.",
        before=before,
        changes={"addresses.txt": File("\n".join(sorted(seen)))},
        script="grep -hoE '[a-z0-9.]+@[a-z.]+' mail/*.txt | LC_ALL=C sort -u > addresses.txt",
    )


@SKILL.template
def replace_word(rng: random.Random) -> Exercise:
    old, new = rng.sample(NOUNS, 2)
    before: dict[str, Entry] = {}
    changes: dict[str, Entry | None] = {}
    for i, noun in enumerate(rng.sample(NOUNS, 6)):
        text = f"{sentence(rng)} {old} and {old}s, {old}-{noun}.\n{lines(rng, 2)}the {old}\n"
        path = f"docs/{'deep/' if i % 3 == 0 else ''}{noun}.{'md' if i < 4 else 'txt'}"
        before[path] = File(text)
        if path.endswith(".md"):
            changes[path] = File(re.sub(rf"\b{old}\b", new, text))
    return Exercise(
        prompt=f"replace the whole word {old} (lower case) with {new} in all *.md files below"
        f" docs/, at every depth; {old}s is another word, and {old}-x holds the word.",
        before=before,
        changes=changes,
        script=f"find docs -name '*.md' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +",
    )


@SKILL.template
def count_words(rng: random.Random) -> Exercise:
    pool = rng.sample(NOUNS, 12)
    words = [word for i, word in enumerate(pool) for _ in range(rng.randint(1, 3) + i // 3)]
    rng.shuffle(words)
    text = "".join(" ".join(words[i : i + 7]) + "\n" for i in range(0, len(words), 7))
    num = rng.randint(3, 7)
    ranks = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[:num]
    return Exercise(
        prompt=f"write the {num} most frequent words of story.txt to top.txt, one a line as"
        " `WORD COUNT`, the most frequent first, equally frequent ones in alphabetical order.",
        before={"story.txt": File(text)},
        changes={"top.txt": File("".join(f"{word} {count}\n" for word, count in ranks))},
        script="tr -s ' ' '\\n' < story.txt | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2,2"
        f" | head -n {num} | awk '{{print $2, $1}}' > top.txt",
    )


@SKILL.template
def sections(rng: random.Random) -> Exercise:
    names = rng.sample(NOUNS, 4)
    wanted = rng.choice(names)
    parts, kept = [], []
    for i in range(rng.randint(6, 8)):
        name = names[i % 4]
        body = lines(rng, rng.randint(1, 3))
        parts.append(f"{sentence(rng)}\n== begin {name} ==\n{body}== end {name} ==\n")
        kept += [body] if name == wanted else []
    return Exercise(
        prompt="notes.txt has sections between lines `== begin NAME ==` and `== end NAME ==`."
        f" Write the lines of all sections {wanted}, in order and without the marks, to"
        f" {wanted}.txt, and take these sections with their marks out of notes.txt.",
        before={"notes.txt": File("".join(parts))},
        changes={
            f"{wanted}.txt": File("".join(kept)),
            "notes.txt": File(
                re.sub(
                    rf"== begin {wanted} ==\n.*?== end {wanted} ==\n",
                    "",
                    "".join(parts),
                    flags=re.S,
                )
            ),
        },
        script=f"sed -n '/^== begin {wanted} ==$/,/^== end {wanted} ==$/p' notes.txt |"
        f" grep -v '^== ' > {wanted}.txt\n"
        f"sed -i '/^== begin {wanted} ==$/,/^== end {wanted} ==$/d' notes.txt",
    )


@SKILL.template
def columns(rng: random.Random) -> Exercise:
    rows = [
        (name, str(rng.randint(100, 999)), rng.choice(NOUNS), str(rng.randint(1, 60)))
        for name in rng.sample(PEOPLE, rng.randint(6, 10))
    ]
    order = rng.sample([1, 2, 3, 4], 3)
    mark = rng.choice([":", ";", "|"])
    out = sorted("\t".join(row[i - 1] for i in order) for row in rows)
    fields = '"\\t"'.join(f"${i}" for i in order)
    return Exercise(
        prompt=f"people.txt has four fields a line, separated by `{mark}`. Write fields"
        f" {order[0]}, {order[1]} and {order[2]}, in this order and separated by one tab, to"
        " people.tsv, the lines sorted by character codes.",
        before={"people.txt": File("".join(mark.join(row) + "\n" for row in rows))},
        changes={"people.tsv": File("\n".join(out))},
        script=f"awk -F'[{mark}]' '{{print {fields}}}' people.txt | LC_ALL=C sort > people.tsv",
    )


@SKILL.template
def line_ends(rng: random.Random) -> Exercise:
    before: dict[str, Entry] = {}
    changes: dict[str, Entry | None] = {}
    for i, noun in enumerate(rng.sample(NOUNS, 5)):
        clean = lines(rng, rng.randint(2, 4))
        is_dos = i != 2
        ragged = "".join(line + " " * rng.randint(0, 3) + "\r\n" for line in clean.splitlines())
        path = f"src/{noun}.{'txt' if i < 4 else 'dat'}"
        before[path] = File(ragged if is_dos else clean)
        if is_dos and path.endswith(".txt"):
            changes[path] = File(clean)
    return Exercise(
        prompt="the *.txt files of src/ should have Unix ends of line and no blanks at the end of"
        " a line. Leave src/*.dat as it is.",
        before=before,
        changes=changes,
        script="sed -i 's/[ \\r]*$//' src/*.txt",
    )
