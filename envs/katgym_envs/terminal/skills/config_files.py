"""Exercises on configuration: INI, JSON, environment files, hosts, templates."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, Ini, Json
from katgym_envs.terminal.words import NOUNS, PEOPLE, lines

SKILL = Skill("config")


@SKILL.template
def edit_ini(rng: random.Random) -> Exercise:
    sections = {
        section: {key: str(rng.randint(1, 999)) for key in rng.sample(NOUNS, 4)}
        for section in rng.sample(NOUNS, 3)
    }
    one, two, three = sections
    after = deepcopy(sections)
    key = next(iter(sections[one]))
    value, fresh = str(rng.randint(1000, 9999)), f"{rng.choice(NOUNS)}_limit"
    after[one][key] = value
    after[two][fresh] = value[::-1]
    lost = next(iter(sections[three]))
    del after[three][lost]
    name = f"{rng.choice(NOUNS)}.ini"
    program = (
        "import configparser as c; p = c.RawConfigParser(); p.optionxform = str;"
        f" p.read('{name}'); p['{one}']['{key}'] = '{value}'; p['{two}']['{fresh}'] ="
        f" '{value[::-1]}'; del p['{three}']['{lost}']; p.write(open('{name}', 'w'))"
    )
    return Exercise(
        prompt=f"in {name}, set {key} of section {one} to {value}, add {fresh} = {value[::-1]} to"
        f" section {two}, and remove {lost} from section {three}. All else stays.",
        before={name: Ini(sections)},
        changes={name: Ini(after)},
        script=f'python3 -c "{program}"',
    )


@SKILL.template
def edit_json(rng: random.Random) -> Exercise:
    servers: list[dict[str, Any]] = [
        {"name": name, "port": rng.randint(2000, 9000), "tags": rng.sample(PEOPLE, 2)}
        for name in rng.sample(NOUNS, rng.randint(3, 5))
    ]
    value: dict[str, Any] = {
        "servers": servers,
        "limits": {"depth": rng.randint(1, 9), "debug": True},
    }
    after = deepcopy(value)
    chosen, other = rng.sample(range(len(servers)), 2)
    port, tag = rng.randint(10_000, 20_000), f"{rng.choice(NOUNS)}-{rng.randint(1, 9)}"
    after["servers"][chosen]["port"] = port
    after["servers"][chosen]["tags"].append(tag)
    after["limits"]["debug"] = False
    del after["servers"][other]
    name = f"{rng.choice(NOUNS)}.json"
    program = (
        f"import json; v = json.load(open('{name}')); s = v['servers']; s[{chosen}]['port'] ="
        f" {port}; s[{chosen}]['tags'].append('{tag}'); v['limits']['debug'] = False; del"
        f" s[{other}]; json.dump(v, open('{name}', 'w'), indent=2)"
    )
    return Exercise(
        prompt=f"in {name}, give the server {servers[chosen]['name']} the port {port} (a number)"
        f" and, at the end of its tags, the tag {tag}; remove the server {servers[other]['name']};"
        " set debug to false. It stays valid JSON with all else as it was.",
        before={name: Json(value)},
        changes={name: Json(after)},
        script=f'python3 -c "{program}"',
    )


@SKILL.template
def merge_env(rng: random.Random) -> Exercise:
    keys = [noun.upper() for noun in rng.sample(NOUNS, 9)]
    defaults = {key: str(rng.randint(1, 999)) for key in keys[:7]}
    local = {key: f"{rng.choice(NOUNS)}{rng.randint(1, 9)}" for key in keys[4:]}
    merged = {**defaults, **local}
    off = keys[5]
    shown = "".join(f"{key}={value}\n" for key, value in local.items() if key != off)
    merged[off] = defaults[off]
    return Exercise(
        prompt="write to .env the variables of defaults.env and local.env, one `KEY=VALUE` a line,"
        " sorted by key. Where both have one, local.env's value holds. Lines that begin with # are"
        " comments and do not count; in .env there are none.",
        before={
            "defaults.env": File(
                "# defaults\n" + "".join(f"{key}={value}\n" for key, value in defaults.items())
            ),
            "local.env": File(f"#{off}={local[off]}\n{shown}"),
        },
        changes={".env": File("".join(f"{key}={merged[key]}\n" for key in sorted(merged)))},
        script="cat defaults.env local.env | grep -v '^#' |"
        " awk -F= '{v[$1] = $0} END {for (k in v) print v[k]}' | LC_ALL=C sort > .env",
    )


@SKILL.template
def hosts(rng: random.Random) -> Exercise:
    names = rng.sample(NOUNS, rng.randint(5, 7))
    rows = [
        [f"10.{rng.randint(0, 9)}.{rng.randint(0, 99)}.{i + 2}", n] for i, n in enumerate(names)
    ]
    address, alias = f"192.168.{rng.randint(0, 250)}.{rng.randint(2, 250)}", f"{names[1]}-www"
    after = [" ".join(row) for row in rows]
    after[0] = f"{address} {names[0]}"
    after[1] += f" {alias}"
    after[2] = f"#{after[2]}"
    shown = [" ".join(row) for row in rows]
    order = rng.sample(range(len(rows)), len(rows))
    return Exercise(
        prompt=f"in hosts, change the address of {names[0]} to {address}, add the alias {alias} at"
        f" the end of the line of {names[1]} (after one blank), and put a # before the line of"
        f" {names[2]}. Order and other lines stay.",
        before={"hosts": File("".join(shown[i] + "\n" for i in order))},
        changes={"hosts": File("".join(after[i] + "\n" for i in order))},
        script=f"sed -i -e 's/^.* {names[0]}$/{address} {names[0]}/'"
        f" -e 's/ {names[1]}$/& {alias}/' -e 's/^.* {names[2]}$/#&/' hosts",
    )


@SKILL.template
def fill_templates(rng: random.Random) -> Exercise:
    values = {key: f"{rng.choice(PEOPLE)}/{rng.randint(1, 999)}" for key in rng.sample(NOUNS, 5)}
    before: dict[str, Entry] = {}
    changes: dict[str, Entry | None] = {}
    for noun in rng.sample(NOUNS, 3):
        keys = rng.sample(sorted(values), 3)
        text = "".join(f"{key}: {{{{{key}}}}} and {lines(rng, 1)}" for key in keys)
        before[f"templates/{noun}.conf.tmpl"] = File(text)
        for key, value in values.items():
            text = text.replace(f"{{{{{key}}}}}", value)
        changes[f"out/{noun}.conf"] = File(text)
    before["values.json"] = Json(values)
    program = (
        "import json, pathlib, re; v = json.load(open('values.json'));"
        " pathlib.Path('out').mkdir(); [pathlib.Path('out',"
        " f.stem).write_text(re.sub(r'{{(\\w+)}}', lambda m: v[m[1]], f.read_text())) for f in"
        " pathlib.Path('templates').glob('*.tmpl')]"
    )
    return Exercise(
        prompt="make out/NAME.conf from each templates/NAME.conf.tmpl: each {{KEY}} becomes that"
        " key's value in values.json, all else stays.",
        before=before,
        changes=changes,
        script=f'python3 -c "{program}"',
    )


@SKILL.template
def toggle_flags(rng: random.Random) -> Exercise:
    flags = {noun: rng.choice(["on", "off"]) for noun in rng.sample(NOUNS, 8)}
    chosen = rng.sample(sorted(flags), 3)
    text = "".join(f"# {lines(rng, 1)}{flag}\t{value}\n" for flag, value in flags.items())
    turned = {f: {"on": "off", "off": "on"}[v] if f in chosen else v for f, v in flags.items()}
    after = text
    for flag in chosen:
        after = after.replace(f"\n{flag}\t{flags[flag]}\n", f"\n{flag}\t{turned[flag]}\n")
    return Exercise(
        prompt="flags.conf has lines `FLAG<tab>on` or `FLAG<tab>off`. Turn each of"
        f" {', '.join(chosen)} over (on becomes off, off becomes on); comments and other lines"
        " stay. Write all flags that are then on to on.json, a sorted list.",
        before={"flags.conf": File(text)},
        changes={
            "flags.conf": File(after),
            "on.json": Json(
                json.loads(json.dumps(sorted(f for f, v in turned.items() if v == "on")))
            ),
        },
        script="\n".join(
            f"sed -i -E 's/^{flag}\\t(on|off)$/{flag}\\t{turned[flag]}/' flags.conf"
            for flag in chosen
        )
        + "\npython3 -c \"import json; json.dump(sorted(l.split()[0] for l in open('flags.conf')"
        " if l.endswith('\\ton\\n') and l[0] != '#'), open('on.json', 'w'))\"",
    )
