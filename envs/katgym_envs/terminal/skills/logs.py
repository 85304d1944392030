"""Exercises on logs and schedules: crontabs, rotation, counting, merging."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File
from katgym_envs.terminal.words import NOUNS, sentence

SKILL = Skill("logs")
_DAYS = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")


def _stamps(rng: random.Random, num: int, *, hours: int = 8) -> list[datetime]:
    start = datetime(2024, rng.randint(1, 12), rng.randint(1, 27), rng.randint(0, 14), tzinfo=UTC)
    return sorted(start + timedelta(seconds=s) for s in rng.sample(range(hours * 3600), num))


@SKILL.template
def crontab(rng: random.Random) -> Exercise:
    entries, asked = [], []
    for noun in rng.sample(NOUNS, rng.randint(3, 5)):
        minute, hour, day = rng.randint(0, 59), rng.randint(0, 23), rng.randint(0, 6)
        date = rng.randint(1, 28)
        fields, when = rng.choice(
            [
                (f"{minute} {hour} * * *", f"every day at {hour:02d}:{minute:02d}"),
                (f"{minute} * * * *", f"every hour at minute {minute}"),
                (f"{minute} {hour} * * {day}", f"{_DAYS[day]} at {hour:02d}:{minute:02d}"),
                (
                    f"{minute} {hour} {date} * *",
                    f"on day {date} of a month at {hour:02d}:{minute:02d}",
                ),
            ]
        )
        entries.append(f"{fields} /opt/bin/{noun}")
        asked.append(f"/opt/bin/{noun} {when}")
    old = f"{rng.randint(0, 59)} 4 * * * /opt/bin/old-{rng.choice(NOUNS)}"
    return Exercise(
        prompt="jobs.crontab is a crontab. Remove its one job and add, in this order, one line"
        f" each: {'; '.join(asked)}. Numbers without leading zeros, days of the week as 0 (Sunday)"
        " to 6, one blank between fields. Comments stay on top.",
        before={"jobs.crontab": File(f"# kept\nSHELL=/bin/bash\n{old}\n")},
        changes={"jobs.crontab": File("\n".join(["# kept", "SHELL=/bin/bash", *entries]))},
        script="sed -i '/old-/d' jobs.crontab\ncat >> jobs.crontab <<'END'\n"
        + "\n".join(entries)
        + "\nEND",
    )


@SKILL.template
def jobs_due(rng: random.Random) -> Exercise:
    moment = datetime(2024, rng.randint(1, 12), rng.randint(1, 28), rng.randint(0, 23), tzinfo=UTC)
    moment += timedelta(minutes=rng.randint(0, 59))
    rows: list[str] = []
    due: list[str] = []
    for noun in rng.sample(NOUNS, 9):
        right = (moment.minute, moment.hour, moment.day, moment.month)
        fields = ["*" if rng.random() < 0.5 else str(value) for value in right]
        if due and rng.random() < 0.6:
            place = rng.randrange(4)
            fields[place] = str(right[place] % (12 if place == 3 else 20) + 1)
        else:
            due.append(noun)
        rows.append(f"{' '.join(fields)} * {noun}")
    first = " ".join(map(str, [moment.minute, moment.hour, moment.day, moment.month]))
    script = (
        f"read -r m h d o <<< '{first}'\n"
        'awk -v m=$m -v h=$h -v d=$d -v o=$o \'($1=="*"||$1==m)&&($2=="*"||$2==h)&&'
        '($3=="*"||$3==d)&&($4=="*"||$4==o) {print $6}\' jobs.crontab | LC_ALL=C sort > due.txt'
    )
    return Exercise(
        prompt=f"which jobs of jobs.crontab are due at {moment:%Y-%m-%d %H:%M}? Write their names"
        " to due.txt, one a line, in alphabetical order.",
        before={"jobs.crontab": File("\n".join(rows) + "\n")},
        changes={"due.txt": File("\n".join(sorted(due)))},
        script=script,
    )


@SKILL.template
def rotate(rng: random.Random) -> Exercise:
    noun, num = rng.choice(NOUNS), rng.randint(3, 5)
    names = [f"{noun}.log", *(f"{noun}.log.{i}" for i in range(1, num + 1))]
    texts = [File(f"{sentence(rng)}\n{sentence(rng)}\n") for _ in names]
    changes: dict[str, Entry | None] = dict(zip(names[1:], texts, strict=False))
    changes[names[0]] = File("")
    return Exercise(
        prompt=f"rotate the logs by one: {noun}.log becomes {noun}.log.1, {noun}.log.1 becomes"
        f" {noun}.log.2 and so on. Keep {num} old ones, drop the oldest; {noun}.log is then there"
        " and empty.",
        before=dict(zip(names, texts, strict=True)),
        changes=changes,
        script=f"for i in $(seq {num - 1} -1 1); do mv {noun}.log.$i {noun}.log.$((i + 1)); done\n"
        f"mv {noun}.log {noun}.log.1\ntouch {noun}.log",
    )


@SKILL.template
def errors_by_hour(rng: random.Random) -> Exercise:
    stamps = _stamps(rng, rng.randint(25, 40))
    levels = [rng.choice(["INFO", "WARN", "ERROR", "ERROR"]) for _ in stamps]
    text = "".join(
        f"{stamp:%Y-%m-%dT%H:%M:%S} {level}"
        f" {sentence(rng, num_words=3)}{' no ERROR' * (i % 5 == 0)}\n"
        for i, (stamp, level) in enumerate(zip(stamps, levels, strict=True))
    )
    level = rng.choice(["ERROR", "WARN"])
    counts = Counter(
        f"{stamp:%Y-%m-%dT%H}" for stamp, kind in zip(stamps, levels, strict=True) if kind == level
    )
    table = "".join(f"{hour},{counts[hour]}\n" for hour in sorted(counts))
    return Exercise(
        prompt=f"count the lines of app.log whose level (second field) is {level} by hour, and"
        " write hours.csv: first the line `hour,count`, then one line for each hour that has some,"
        " in order, with hours like 2024-05-01T09.",
        before={"app.log": File(text)},
        changes={"hours.csv": File(f"hour,count\n{table}")},
        script=f"{{ echo hour,count; awk '$2 == \"{level}\" {{print substr($1, 1, 13)}}' app.log |"
        " sort | uniq -c | awk '{print $2 \",\" $1}'; } > hours.csv",
    )


@SKILL.template
def merge_logs(rng: random.Random) -> Exercise:
    names = sorted(rng.sample(NOUNS, 3))
    parts: dict[str, list[str]] = {name: [] for name in names}
    merged = []
    for stamp in _stamps(rng, rng.randint(15, 24)):
        name, text = rng.choice(names), sentence(rng, num_words=3)
        parts[name].append(f"{stamp:%Y-%m-%dT%H:%M:%S} {text}\n")
        merged.append(f"{stamp:%Y-%m-%dT%H:%M:%S} {name}: {text}\n")
    return Exercise(
        prompt="join logs/*.log to all.log, ordered by time, each line as `TIME NAME: TEXT`, where"
        " NAME is its file's without .log. Then empty, but keep, the files in logs/.",
        before={f"logs/{name}.log": File("".join(part)) for name, part in parts.items()},
        changes={"all.log": File("".join(merged))}
        | {f"logs/{name}.log": File("") for name in names},
        script='for f in logs/*.log; do sed "s/ / $(basename $f .log): /" $f; done |'
        " sort > all.log\n"
        "for f in logs/*.log; do : > $f; done",
    )


@SKILL.template
def slow_requests(rng: random.Random) -> Exercise:
    paths = [f"/{noun}" for noun in rng.sample(NOUNS, 6)]
    limit = rng.randint(300, 800)
    rows, worst = [], dict.fromkeys(paths, 0)
    for stamp in _stamps(rng, rng.randint(25, 40), hours=2):
        path, status = rng.choice(paths), rng.choice([200, 200, 200, 404, 500])
        time_ms = rng.randint(5, 1200)
        worst[path] = max(worst[path], time_ms if status == 200 else 0)
        rows.append(f'[{stamp:%H:%M:%S}] "GET {path}" {status} {time_ms}ms\n')
    slow = sorted((p for p in paths if worst[p] > limit), key=lambda p: (-worst[p], p))
    return Exercise(
        prompt=f"access.log has time, request, status and duration. For each path with an answer of"
        f" status 200 that took more than {limit} ms, write `PATH MS` to slow.txt, MS being the"
        " longest duration with status 200; the slowest path first, equal ones in alphabetical"
        " order.",
        before={"access.log": File("".join(rows))},
        changes={"slow.txt": File("".join(f"{path} {worst[path]}\n" for path in slow))},
        script="tr -d '\"' < access.log | sed 's/ms$//' | awk -v n="
        f"{limit} '$4 == 200 && $5 + 0 > n {{if ($5 + 0 > w[$3]) w[$3] = $5 + 0}}"
        " END {for (p in w) print p, w[p]}' | LC_ALL=C sort -k2,2nr -k1,1 > slow.txt",
    )
