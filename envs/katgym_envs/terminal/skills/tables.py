"""Exercises on tables of data: CSV and JSON lines, grouped, joined, cleaned, turned."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, Json
from katgym_envs.terminal.words import CITIES, NOUNS, PEOPLE

SKILL = Skill("data")


def _csv(head: str, rows: list[tuple[object, ...]]) -> File:
    return File("".join(",".join(map(str, row)) + "\n" for row in [(head,), *rows]))


def _python(program: str) -> str:
    return f"python3 - <<'END'\nimport csv, json\n{program}\nEND"


@SKILL.template
def group_sums(rng: random.Random) -> Exercise:
    items = rng.sample(NOUNS, 5)
    rows = [
        (rng.choice(CITIES[:6]), rng.choice(items), rng.randint(1, 90))
        for _ in range(rng.randint(18, 30))
    ]
    item = rng.choice(items)
    sums: dict[str, int] = defaultdict(int)
    for city, name, amount in rows:
        sums[city] += amount if name != item else 0
    table = sorted((c, s) for c, s in sums.items() if s)
    return Exercise(
        prompt="sales.csv has city, item and amount. Write sums.csv with the head `city,amount`:"
        f" the sum of the amounts of each city without the item {item}, sorted by city; cities"
        " without any are left out.",
        before={"sales.csv": _csv("city,item,amount", list(rows))},
        changes={"sums.csv": _csv("city,amount", list(table))},
        script="{ echo city,amount; awk -F, 'NR > 1 && $2 != \"" + item + '" {s[$1] += $3}'
        ' END {for (c in s) print c "," s[c]}\' sales.csv | LC_ALL=C sort; } > sums.csv',
    )


@SKILL.template
def lines_to_csv(rng: random.Random) -> Exercise:
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "city": rng.choice(CITIES),
            "age": rng.randint(18, 80),
            "tags": rng.sample(NOUNS, 2),
        }
        for name in rng.sample(PEOPLE, rng.randint(6, 10))
    ]
    limit = rng.randint(25, 50)
    kept = sorted((r for r in rows if r["age"] >= limit), key=lambda r: r["name"])
    table: list[tuple[object, ...]] = [(r["name"], r["age"], "+".join(r["tags"])) for r in kept]
    return Exercise(
        prompt="people.jsonl has one JSON object a line. Write people.csv with the head"
        f" `name,age,tags`: those who are at least {limit}, sorted by name, the tags joined with"
        " +.",
        before={"people.jsonl": File("".join(json.dumps(row) + "\n" for row in rows))},
        changes={"people.csv": _csv("name,age,tags", table)},
        script=_python(
            "rows = [json.loads(line) for line in open('people.jsonl')]\n"
            "with open('people.csv', 'w') as file:\n    print('name,age,tags', file=file)\n"
            "    for r in sorted(rows, key=lambda r: r['name']):\n"
            f"        if r['age'] >= {limit}:\n"
            "            print(r['name'], r['age'], '+'.join(r['tags']), sep=',', file=file)"
        ),
    )


@SKILL.template
def join_tables(rng: random.Random) -> Exercise:
    people = [(i, name) for i, name in enumerate(rng.sample(PEOPLE, 7), start=rng.randint(1, 50))]
    orders = [(rng.choice(people)[0], rng.choice(NOUNS)) for _ in range(12)]
    rng.shuffle(people)
    value = {name: sorted({item for i, item in orders if i == key}) for key, name in people}
    return Exercise(
        prompt="people.csv has id and name, orders.csv id (of the person) and item. Write"
        " items.json: an object that maps each name to the sorted list of the different items of"
        " that person, an empty list for those without.",
        before={
            "people.csv": _csv("id,name", list(people)),
            "orders.csv": _csv("id,item", list(orders)),
        },
        changes={"items.json": Json(value)},
        script=_python(
            "orders = list(csv.DictReader(open('orders.csv')))\n"
            "found = {p['name']: sorted({o['item'] for o in orders if o['id'] == p['id']})"
            " for p in csv.DictReader(open('people.csv'))}\n"
            "json.dump(found, open('items.json', 'w'))"
        ),
    )


@SKILL.template
def pivot(rng: random.Random) -> Exercise:
    cities, items = sorted(rng.sample(CITIES, 4)), sorted(rng.sample(NOUNS, 3))
    cells = {(c, i): rng.randint(1, 99) for c in cities for i in items if rng.random() < 0.75}
    cells[cities[0], items[0]] = rng.randint(100, 999)
    used = sorted({i for _, i in cells})
    rows = [(c, i, n) for (c, i), n in cells.items()]
    rng.shuffle(rows)
    table: list[tuple[object, ...]] = [
        (c, *(cells.get((c, i), 0) for i in used)) for c in cities if any(k[0] == c for k in cells)
    ]
    return Exercise(
        prompt="long.csv has city, item and count. Write wide.csv: the head `city`, then the items"
        " that occur in alphabetical order; one row a city, sorted by city, with the counts, 0"
        " where there is none.",
        before={"long.csv": _csv("city,item,count", list(rows))},
        changes={"wide.csv": _csv(",".join(["city", *used]), table)},
        script=_python(
            "rows = list(csv.DictReader(open('long.csv')))\n"
            "items = sorted({r['item'] for r in rows})\n"
            "with open('wide.csv', 'w') as file:\n"
            "    print('city', *items, sep=',', file=file)\n"
            "    for c in sorted({r['city'] for r in rows}):\n"
            "        n = {r['item']: r['count'] for r in rows if r['city'] == c}\n"
            "        print(c, *(n.get(i, 0) for i in items), sep=',', file=file)"
        ),
    )


@SKILL.template
def clean(rng: random.Random) -> Exercise:
    rows: list[tuple[object, ...]] = []
    kept: list[tuple[object, ...]] = []
    for name in rng.sample(PEOPLE, rng.randint(7, 10)):
        day = datetime(1980, 1, 1, tzinfo=UTC) + timedelta(days=rng.randrange(9000))
        number = "" if rng.random() < 0.25 else str(rng.randint(1000, 9999))
        shown = rng.choice([name.upper(), name.title(), f" {name}", f"{name}  "])
        rows.append((number, shown, f"{day:%d.%m.%Y}"))
        if number:
            kept.append((number, name, f"{day:%Y-%m-%d}"))
    rows.append((7, " OLAF ", "01.02.1999"))
    kept.append((7, "olaf", "1999-02-01"))
    return Exercise(
        prompt="clean raw.csv (id, name, born) into clean.csv with the same head: rows without an"
        " id are dropped, names in lower case and without blanks around them, dates as YYYY-MM-DD;"
        " the order stays. Remove raw.csv.",
        before={"raw.csv": _csv("id,name,born", rows)},
        changes={"clean.csv": _csv("id,name,born", kept), "raw.csv": None},
        script='awk -F, \'NR == 1 {print; next} $1 != "" {gsub(/^ +| +$/, "", $2);'
        ' split($3, d, ".");'
        ' print $1 "," tolower($2) "," d[3] "-" d[2] "-" d[1]}\' raw.csv > clean.csv\nrm raw.csv',
    )


@SKILL.template
def split_by_column(rng: random.Random) -> Exercise:
    cities = rng.sample(CITIES, 4)
    rows: list[tuple[object, ...]] = [
        (i, rng.choice(cities), rng.choice(NOUNS)) for i in range(1, rng.randint(14, 20))
    ]
    changes: dict[str, Entry | None] = {}
    for city in cities:
        own = [row for row in rows if row[1] == city]
        if own:
            changes[f"parts/{city.lower()}.csv"] = _csv("id,city,item", own)
    return Exercise(
        prompt="split all.csv (id, city, item) into parts/CITY.csv, one file a city with its name"
        " in lower case, each with the head and the rows in order.",
        before={"all.csv": _csv("id,city,item", rows)},
        changes=changes,
        script='mkdir parts\nawk -F, \'NR == 1 {h = $0; next} {f = "parts/" tolower($2) ".csv";'
        " if (!(f in s)) {print h > f; s[f]} print > f}' all.csv",
    )
