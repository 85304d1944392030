"""Exercises on SQLite files: updating, importing, exporting, schemas."""

from __future__ import annotations

import random

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Cell, Database, File, Table
from katgym_envs.terminal.words import CITIES, NOUNS, PEOPLE

SKILL = Skill("sqlite")
_PEOPLE = (("id", "INTEGER"), ("name", "TEXT"), ("city", "TEXT"), ("points", "INTEGER"))
_ORDERS = (("id", "INTEGER"), ("person", "INTEGER"), ("item", "TEXT"), ("price", "INTEGER"))
Rows = tuple[tuple[Cell, ...], ...]


def _people(rng: random.Random, num: int) -> list[tuple[int, str, str, int]]:
    names = rng.sample(PEOPLE, num)
    return [
        (i, name, rng.choice(CITIES[:5]), rng.randint(1, 999))
        for i, name in enumerate(names, start=1)
    ]


def _orders(rng: random.Random, num: int, num_people: int) -> list[tuple[int, int, str, int]]:
    return [
        (i, rng.randint(1, num_people), rng.choice(NOUNS), rng.randint(2, 400))
        for i in range(1, num + 1)
    ]


def _run(name: str, *statements: str) -> str:
    """Return shell lines that execute SQL statements."""
    return (
        f"python3 - <<'END'\nimport sqlite3\nc = sqlite3.connect('{name}')\n"
        + "".join(f"c.execute({statement!r})\n" for statement in statements)
        + "c.commit()\nc.close()\nEND"
    )


@SKILL.template
def update_rows(rng: random.Random) -> Exercise:
    name, people = f"{rng.choice(NOUNS)}.db", _people(rng, 12)
    city, other = rng.sample(sorted({row[2] for row in people}), 2)
    bonus, limit = rng.randint(5, 90), rng.randint(100, 500)
    after = [
        (i, n, c, p + bonus if c == city else p)
        for i, n, c, p in people
        if not (c == other and p < limit)
    ]
    return Exercise(
        prompt=f"in the SQLite file {name}, give everybody in {city} {bonus} points more, and"
        f" delete those people in {other} who have less than {limit} points.",
        before={name: Database({"people": Table(_PEOPLE, tuple(people))})},
        changes={name: Database({"people": Table(_PEOPLE, tuple(after))})},
        script=_run(
            name,
            f"UPDATE people SET points = points + {bonus} WHERE city = '{city}'",
            f"DELETE FROM people WHERE city = '{other}' AND points < {limit}",
        ),
    )


@SKILL.template
def import_csv(rng: random.Random) -> Exercise:
    name, table = f"{rng.choice(NOUNS)}.db", f"{rng.choice(NOUNS)}_items"
    people = Table(_PEOPLE, tuple(_people(rng, 4)))
    rows = [(noun, rng.randint(1, 500)) for noun in rng.sample(NOUNS, rng.randint(5, 8))]
    columns = (("item", "TEXT"), ("amount", "INTEGER"))
    return Exercise(
        prompt=f"put the rows of items.csv into a new table {table} of the SQLite file {name},"
        " with the columns item (TEXT) and amount (INTEGER), in this order. The other table stays.",
        before={
            name: Database({"people": people}),
            "items.csv": File("item,amount\n" + "".join(f"{item},{n}\n" for item, n in rows)),
        },
        changes={name: Database({"people": people, table: Table(columns, tuple(rows))})},
        script="python3 - <<'END'\nimport csv, sqlite3\n"
        f"c = sqlite3.connect('{name}')\n"
        f"c.execute('CREATE TABLE {table} (item TEXT, amount INTEGER)')\n"
        "rows = [(r['item'], int(r['amount'])) for r in csv.DictReader(open('items.csv'))]\n"
        f"c.executemany('INSERT INTO {table} VALUES (?, ?)', rows)\nc.commit()\nEND",
    )


@SKILL.template
def export_totals(rng: random.Random) -> Exercise:
    name, people = f"{rng.choice(NOUNS)}.db", _people(rng, 6)
    orders = _orders(rng, 20, 6)
    least = rng.randint(5, 100)
    totals = {
        n: sum(price for _, person, _, price in orders if person == i and price >= least)
        for i, n, _, _ in people
    }
    ranks = sorted((n for n in totals if totals[n]), key=lambda n: (-totals[n], n))
    query = (
        "SELECT name, SUM(price) AS t FROM people JOIN orders ON person = people.id"
        f" WHERE price >= {least} GROUP BY people.id ORDER BY t DESC, name"
    )
    database = Database(
        {"people": Table(_PEOPLE, tuple(people)), "orders": Table(_ORDERS, tuple(orders))}
    )
    return Exercise(
        prompt=f"the SQLite file {name} has people, and orders of theirs (column person). Write"
        f" totals.csv: the line `name,total`, then for each person with orders of at least {least}"
        " the sum of the prices of these orders, the largest sum first, equal ones by name.",
        before={name: database},
        changes={"totals.csv": File("name,total\n" + "".join(f"{n},{totals[n]}\n" for n in ranks))},
        script="python3 - <<'END' > totals.csv\nimport sqlite3\nprint('name,total')\n"
        f"for row in sqlite3.connect('{name}').execute({query!r}):\n    print(*row, sep=',')\nEND",
    )


@SKILL.template
def remove_duplicates(rng: random.Random) -> Exercise:
    name, people = f"{rng.choice(NOUNS)}.db", _people(rng, 7)
    rows = list(people)
    for i in range(8, rng.randint(11, 14)):
        _, twin, city, points = rng.choice(people)
        rows.append((i, twin, city, points + rng.randint(1, 99)))
    kept: dict[str, tuple[int, str, str, int]] = {}
    for row in rows:
        kept.setdefault(row[1], row)
    table = Table(_PEOPLE, tuple(kept.values()))
    return Exercise(
        prompt=f"in the table people of the SQLite file {name} some names occur more than once."
        " Keep the row with the lowest id of each name, and make a unique index on people(name).",
        before={name: Database({"people": Table(_PEOPLE, tuple(rows))})},
        changes={name: Database({"people": table}, indexes={"people(name)": True})},
        script=_run(
            name,
            "DELETE FROM people WHERE id NOT IN (SELECT MIN(id) FROM people GROUP BY name)",
            "CREATE UNIQUE INDEX people_name ON people(name)",
        ),
    )


@SKILL.template
def add_column(rng: random.Random) -> Exercise:
    name, people = f"{rng.choice(NOUNS)}.db", _people(rng, 6)
    orders = _orders(rng, 15, 6)
    column = rng.choice(["spent", "total_paid", "turnover"])
    spent = {i: sum(price for _, p, _, price in orders if p == i) for i, *_ in people}
    wide = tuple((*row, spent[row[0]]) for row in people)
    limit = rng.randint(20, 120)
    left = tuple(row for row in orders if row[3] >= limit)
    return Exercise(
        prompt=f"in the SQLite file {name}, give people a last column {column} (INTEGER) with the"
        " sum of the prices of all their orders (orders.person), 0 for those without; then delete"
        f" the orders below {limit}.",
        before={
            name: Database(
                {"people": Table(_PEOPLE, tuple(people)), "orders": Table(_ORDERS, tuple(orders))}
            )
        },
        changes={
            name: Database(
                {
                    "people": Table((*_PEOPLE, (column, "INTEGER")), wide),
                    "orders": Table(_ORDERS, left),
                }
            )
        },
        script=_run(
            name,
            f"ALTER TABLE people ADD COLUMN {column} INTEGER",
            f"UPDATE people SET {column} ="
            " (SELECT COALESCE(SUM(price), 0) FROM orders WHERE person = people.id)",
            f"DELETE FROM orders WHERE price < {limit}",
        ),
    )
