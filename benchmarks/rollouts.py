"""Overhead of a rollout: scheduler, loop and full recording with a policy that takes no time.

Runs katgym and, with `--peer`, other libraries on the same toy task, one process per configuration,
interleaved, and prints p20/p50/p80 over the repeats as CSV.

    python benchmarks/rollouts.py > rollouts.csv
    python benchmarks/rollouts.py --peer inspect=VENV/bin/python --peer verifiers=...
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEERS = {"inspect": "peers/inspect_peer.py", "verifiers": "peers/verifiers_peer.py"}
COLUMNS = (
    *("library", "version", "metric", "unit", "concurrency", "episodes", "repeats"),
    *("p20", "p50", "p80", "device", "python", "commit"),
)
EPISODES = {"katgym": 2000, "inspect": 200, "verifiers": 200}


def run_one(python: str, script: Path, *args: str) -> dict[str, object]:
    """Run one configuration in a process of its own and return its row."""
    # Unbuffered errors of a peer go to the terminal: a failed configuration stops the benchmark.
    folder = os.pathsep.join([str(script.parent), os.environ.get("PYTHONPATH", "")])
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    done = subprocess.run(
        [python, str(script), *args],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": folder, "PATH": path},
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """Return p20, p50, p80; all the same for a single value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 2048])
    args = parser.parse_args()
    players = {"katgym": (sys.executable, HERE / "toy_task.py")}
    for peer in args.peer:
        name, _, python = peer.partition("=")
        if name not in PEERS or not Path(python).exists():
            parser.error(f"--peer {peer!r}: NAME is one of {', '.join(PEERS)}, PYTHON a file")
        players[name] = (python, HERE / PEERS[name])
    rows: dict[tuple[str, int, str], list[dict[str, object]]] = {}
    for repeat in range(args.repeats):
        for concurrency in args.concurrency:
            for name, (python, script) in players.items():
                if name != "katgym" and concurrency > 512:
                    continue
                options = ["--concurrency", str(concurrency), "--episodes", str(EPISODES[name])]
                row = run_one(python, script, *options)
                rows.setdefault((name, concurrency, "time"), []).append(row)
                print(
                    f"{repeat} {name} {concurrency}: {row['us_per_turn']:.0f} us", file=sys.stderr
                )
    for name, (python, script) in players.items():
        for concurrency in (512,):
            options = ["--concurrency", str(concurrency), "--probe", "memory"]
            rows[name, concurrency, "memory"] = [run_one(python, script, *options)]
    write(rows)


def write(rows: dict[tuple[str, int, str], list[dict[str, object]]]) -> None:
    """Print the CSV."""
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    device = f"{platform.machine()} {os.cpu_count()} cores"
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    for (_, concurrency, kind), measured in rows.items():
        metrics = (
            [("overhead_per_turn", "us", "us_per_turn"), ("rollouts", "1/s", "episodes_per_s")]
            if kind == "time"
            else [("memory_per_live_rollout", "KiB", "kib_per_live_episode")]
        )
        for metric, unit, key in metrics:
            low, median, high = quantiles([float(str(row[key])) for row in measured])
            out.writerow(
                {
                    "library": measured[0]["library"],
                    "version": measured[0]["version"],
                    "metric": metric,
                    "unit": unit,
                    "concurrency": concurrency,
                    "episodes": measured[0]["episodes"],
                    "repeats": len(measured),
                    "p20": round(low, 2),
                    "p50": round(median, 2),
                    "p80": round(high, 2),
                    "device": device,
                    "python": platform.python_version(),
                    "commit": commit,
                }
            )


if __name__ == "__main__":
    main()
