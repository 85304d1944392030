"""Show who trains and plays for a run on a cluster, and which servers sample for it.

RUN is the folder of a run of `katgym train` with a section [cluster], or of an evaluation that a
cluster plays (`katgym eval --workers N --set cluster=ADDRESS`; with --tts it is RUN/attempts). What
is shown stands in RUN/ranks.json and RUN/cluster.json, as JSON; the run writes them every two
seconds.

example:
  katgym cluster status runs/low
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from katgym import console
from katgym.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")


def run(args: argparse.Namespace) -> int:
    """Print what the run has last told of itself."""
    files = [args.folder / name for name in ("ranks.json", "cluster.json")]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()]
    if not found:
        raise UsageError(
            f"{str(files[-1])!r} is not there: the run has no section [cluster] (katgym train), no"
            " --set cluster=ADDRESS with --workers (katgym eval), or it has placed no workers yet"
        )
    told = {key: value for item in reversed(found) for key, value in item.items()}
    age_s = time.time() - told["written_s"]
    state = "the run has ended" if told["is_over"] else f"told {age_s:.0f} s ago"
    if not told["is_over"] and age_s > 30:
        state += ": the run was killed, or hangs"
    console.stdout.print(f"cluster {told['address']} ({', '.join(told['hosts'])}); {state}")
    tables: tuple[tuple[str, str, str, str, dict[str, str]], ...] = (
        ("rank", "ranks", "name", "is_up", {}),
        ("worker", "workers", "name", "is_up", {"plays": "num_running", "groups": "num_calls"}),
        ("server", "servers", "url", "is_open", {"version": "version"}),
    )
    for title, key, name, is_up, extra in tables:
        if key not in told:
            continue
        numbers = {**extra, "restarts": "num_restarts"}
        rows = [
            [
                item[name] + (f" on {item['place']}" if item.get("place") else ""),
                console.yes_or_no(item[is_up]),
                *(str(item[number]) for number in numbers.values()),
                item["error"] or item.get("end", ""),
            ]
            for item in told[key]
        ]
        console.print_rows(rows, header=[title, is_up[3:], *numbers, ""], right=[*numbers])
    return 0
