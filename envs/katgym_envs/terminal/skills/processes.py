"""Exercises on processes: signals, exit codes, time limits, pipes, environment."""

from __future__ import annotations

import random

from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.state.entries import Entry, File, Ini, Json
from katgym_envs.terminal.words import NOUNS, lines

SKILL = Skill("processes")
_WORKER = """\
import configparser, json, os, signal, sys, time

name = sys.argv[1]
state = {"reloads": 0, "rates": []}
ready = f"/tmp/{name}.ready"


def load(*_):
    parser = configparser.ConfigParser()
    parser.read("worker.ini")
    state["rates"].append(parser.getint("worker", "rate") * FACTOR)
    with open(ready + ".new", "w") as file:
        file.write(str(len(state["rates"])))
    os.replace(ready + ".new", ready)


def reload(*_):
    state["reloads"] += 1
    load()


def stop(*_):
    with open("state.json", "w") as file:
        json.dump(state, file)
    os.remove(ready)
    sys.exit(0)


signal.signal(signal.SIGHUP, reload)
signal.signal(signal.SIGTERM, stop)
load()
while True:
    time.sleep(60)
"""


@SKILL.template
def signals(rng: random.Random) -> Exercise:
    name, factor = rng.choice(NOUNS), rng.randint(3, 97)
    rates = rng.sample(range(100, 999), rng.randint(2, 3))
    steps = "".join(
        f"sed -i 's/^rate = .*/rate = {rate}/' worker.ini\nkill -HUP $pid\nready {i}\n"
        for i, rate in enumerate(rates[1:], start=2)
    )
    return Exercise(
        prompt=f"run `python3 worker.py {name}` in the background. It reads worker.ini when it"
        f" starts and on SIGHUP, and then writes to /tmp/{name}.ready how often it has read it; on"
        " SIGTERM it writes state.json and ends. Let one such process read the rates"
        f" {', '.join(map(str, rates))} in this order, each by a change of worker.ini, and then"
        " end it.",
        before={
            "worker.py": File(_WORKER.replace("FACTOR", str(factor))),
            "worker.ini": Ini({"worker": {"rate": str(rates[0])}}),
        },
        changes={
            "worker.ini": Ini({"worker": {"rate": str(rates[-1])}}),
            "state.json": Json(
                {"reloads": len(rates) - 1, "rates": [rate * factor for rate in rates]}
            ),
        },
        script=f"python3 worker.py {name} & pid=$!\n"
        f'ready() {{ until [ "$(cat /tmp/{name}.ready 2>/dev/null)" = "$1" ]; do sleep 0.02; done\n'
        "}\n"
        f"ready 1\n{steps}kill -TERM $pid\nwait $pid",
    )


@SKILL.template
def exit_codes(rng: random.Random) -> Exercise:
    codes = {noun: rng.choice([0, 0, 1, 2, 3, 7, 42, 99]) for noun in rng.sample(NOUNS, 6)}
    before: dict[str, Entry] = {
        f"jobs/{noun}.sh": File(
            f"#!/bin/bash\n# {lines(rng, 1)}x=$(( {code + 5} - 5 ))\nexit $x\n", mode=0o755
        )
        for noun, code in codes.items()
    }
    text = "".join(f"{noun} {codes[noun]}\n" for noun in sorted(codes))
    num = sum(code != 0 for code in codes.values())
    return Exercise(
        prompt="run every jobs/*.sh and write `NAME CODE` (name without .sh, exit code) for each to"
        " codes.txt, one a line, in alphabetical order; and to failed.txt how many did not end"
        " with 0.",
        before=before,
        changes={"codes.txt": File(text), "failed.txt": File(f"{num}")},
        script='for f in jobs/*.sh; do c=0; bash $f || c=$?; echo "$(basename $f .sh) $c"; done'
        " > codes.txt\ngrep -vc ' 0$' codes.txt > failed.txt || true",
    )


@SKILL.template
def time_limit(rng: random.Random) -> Exercise:
    names = sorted(rng.sample(NOUNS, 5))
    slow = set(rng.sample(names, 2))
    before: dict[str, Entry] = {}
    changes: dict[str, Entry | None] = {}
    for name in names:
        value = str(rng.randint(1000, 9999))
        body = "trap '' TERM INT\nwhile true; do sleep 600; done\n" if name in slow else "true\n"
        before[f"jobs/{name}.sh"] = File(f"{body}echo {value}\n")
        if name not in slow:
            changes[f"done/{name}.txt"] = File(value)
    changes["stuck.txt"] = File("\n".join(sorted(slow)))
    return Exercise(
        prompt="run each jobs/NAME.sh with bash. What one prints goes to done/NAME.txt; the names"
        " of those that have not ended after a second go to stuck.txt, one a line and in"
        " alphabetical order, and they have no file in done/. Some ignore SIGTERM.",
        before=before,
        changes=changes,
        script="mkdir done\nfor f in jobs/*.sh; do n=$(basename $f .sh)\n"
        "{ timeout -s KILL 4 bash $f > done/$n.txt ||"
        " { rm done/$n.txt; echo $n >> /tmp/stuck; }; } &\n"
        "done\nwait\nsort /tmp/stuck > stuck.txt",
    )


@SKILL.template
def named_pipe(rng: random.Random) -> Exercise:
    pipe, num = f"/tmp/{rng.choice(NOUNS)}-{rng.randint(10, 99)}.fifo", rng.randint(5, 9)
    step, start = rng.randint(3, 40), rng.randint(1, 99)
    values = [start + step * i for i in range(num)]
    reader = 'n=0; while read -r x; do n=$((n + x)); echo "$x $n" >> "$2"; done < "$1"\n'
    totals = "".join(f"{x} {sum(values[: i + 1])}\n" for i, x in enumerate(values))
    return Exercise(
        prompt="writer.sh PIPE writes numbers to a named pipe, reader.sh PIPE OUT adds them up."
        f" Make the pipe {pipe} and run both with bash at the same time, with the output"
        " totals.txt.",
        before={
            "writer.sh": File(f'[ -p "$1" ] && seq {start} {step} {values[-1]} > "$1"\n'),
            "reader.sh": File(f'[ -p "$1" ] || exit 1\n{reader}'),
        },
        changes={"totals.txt": File(totals)},
        script=f"mkfifo {pipe}\nbash writer.sh {pipe} &\nbash reader.sh {pipe} totals.txt\nwait",
    )


@SKILL.template
def environment(rng: random.Random) -> Exercise:
    names = [noun.upper() for noun in rng.sample(NOUNS, 2)]
    values = [f"{rng.choice(NOUNS)} {rng.randint(1, 99)}" for _ in names]
    folder, argument = rng.choice(NOUNS), f"{rng.choice(NOUNS)}  {rng.choice(NOUNS)}"
    script = (
        f'set -eu\n[ "$(basename "$PWD")" = {folder} ]\n'
        f'printf \'%s|\' "${names[0]}" "${names[1]}" "$#" "$1" "$(umask)" > made.txt\n'
    )
    text = f"{values[0]}|{values[1]}|2|{argument}|0077|"
    return Exercise(
        prompt=f"run `bash ../report.sh` in {folder}/ with the umask 077, the environment variables"
        f" {names[0]}=`{values[0]}` and {names[1]}=`{values[1]}`, and two arguments: `{argument}`"
        " (with both blanks) and an empty one. It writes made.txt there.",
        before={"report.sh": File(script), f"{folder}/.keep": File("")},
        changes={f"{folder}/made.txt": File(text, mode=0o600)},
        script=f"cd {folder}\numask 077\n"
        f"{names[0]}='{values[0]}' {names[1]}='{values[1]}' bash ../report.sh '{argument}' ''",
    )
