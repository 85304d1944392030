"""Random kills of everything that Ray places for a run, and what its store says afterwards.

    python trainer/benchmarks/cluster/kills.py --out trainer/benchmarks/cluster/kills.csv

A real run of `katgym train rl` on a Ray cluster of this machine: three nodes, two rollout workers,
two servers (`tests/trainer/rl/hf_server.py`, a model behind vLLM's routes) on GPUs that are none.
After each step, or 25 s, a worker, a server, a server's actor or a node with all it holds is killed
with SIGKILL; a killed node is followed by another. Then the run is stopped, and its groups are
counted: each draw trained once, none left out, every group whole; and whether any server sampled
before it was given weights and probed. Not here: kills in a pool of workers alone
(`benchmarks/workers.py`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("trainer/rl", "trainer", "shared")]

from hf_server_process import python_for  # noqa: E402 - the path is set above
from ray.cluster_utils import Cluster  # noqa: E402
from rl_play import config_text, save_model  # noqa: E402

from katgym.console import stdout  # noqa: E402
from katgym.rollout_store import RolloutStore  # noqa: E402

PROGRAM = """
import sys
from rl_play import register_env
from katgym.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
HOOKS = """
import pluggy

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("kills/Low-v0", "rl_play:LowEnv", description="Digits.")
"""
KINDS = {"worker": b"ray::RolloutActor", "actor": b"ray::ServerActor", "server": b"hf_server"}
MEMORY = 80_000_000


def write_run(folder: Path, cluster: str) -> Path:
    """Write the run's model, plugin and file."""
    (folder / "kp_kills.py").write_text(HOOKS)
    info = folder / "katgym_plugin_kills-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: katgym-plugin-kills\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[katgym]\nkills = kp_kills\n")
    model = save_model(folder / "tiny")
    policy = f'uri = "vllm"\nserver_python = "{python_for(folder)}"\n'
    policy += "[[policy.servers]]\ngpus = 1\ncount = 2\n"
    text = config_text(
        model, steps=1_000_000, env="kills/Low-v0", rollouts="max_staleness = 1",
        more=f'[cluster]\naddress = "{cluster}"\nrollout_workers = 2\n',
    )  # fmt: skip
    text = text.replace("max_context_tokens = 400\n", f"max_context_tokens = 400\n{policy}")
    path = folder / "rl.toml"
    path.write_text(text.replace("learning_rate = 1e-2", "learning_rate = 1e-5"))
    return path


def processes(words: bytes, folder: Path) -> list[int]:
    """Return processes of this run whose command has some words."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            is_one = words in (place / "cmdline").read_bytes() and place.name.isdecimal()
            if is_one and str(folder).encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def lines(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of steps."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def kill(kind: str, folder: Path, cluster: Any, luck: random.Random) -> bool:
    """Kill one of a kind, and return whether there was one."""
    if kind == "node":
        nodes = sorted(cluster.worker_nodes, key=lambda node: node.node_id)
        cluster.remove_node(luck.choice(nodes), allow_graceful=False)
        cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=MEMORY)
        return True
    found = sorted(processes(KINDS[kind], folder))
    if found:
        os.kill(luck.choice(found), signal.SIGKILL)
    return bool(found)


def count_groups(run: Path, journal: Path) -> Mapping[str, int]:
    """Return what became of draws, and how often a server sampled before its weights were seen."""
    with RolloutStore.open(run / "rollouts", create=False) as store:
        records = store.sessions()
    sizes = Counter((r.metadata["step"], r.metadata["draw"]["number"]) for r in records)
    numbers = Counter(number for _, number in sizes)
    steps = lines(run)
    num_steps = steps[-1]["step"]
    due = range(4 * (num_steps - 1))  # with staleness 1 the next step may have what comes after
    probed, early = set(), 0
    for line in journal.read_text().splitlines():
        url, what, _ = line.split()
        if what == "probe":
            probed.add(url)
        early += what == "sample" and url not in probed
    return {
        "steps": num_steps,
        "groups": len(numbers),
        "groups_lost": sum(numbers[number] == 0 for number in due),
        "groups_trained_twice": sum(num > 1 for num in numbers.values()),
        "groups_not_whole": sum(size != 4 for size in sizes.values()),
        "steps_missing": num_steps - len({line["step"] for line in steps}),
        "rollouts_invalid": int(sum(line["rollout/num_invalid"] for line in steps)),
        "samples_before_a_probe": early,
        "server_restarts": int(steps[-1]["sync/num_restarts"]),
    }


def measure(num_kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kill so many, and return the row."""
    luck, killed, began = random.Random(seed), Counter[str](), time.perf_counter()
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    os.environ |= {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(3):
        cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=MEMORY)
    run = folder / "run"
    command = [sys.executable, "-c", PROGRAM, "train", "rl", write_run(folder, cluster.address)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--out", run], stdout=log, stderr=log)
        try:
            while not lines(run):
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                time.sleep(0.5)
            while killed.total() < num_kills:
                # What is killed faster than it starts makes no steps.
                last, until = len(lines(run)), time.monotonic() + 25
                time.sleep(luck.uniform(2, 6))
                while len(lines(run)) <= last and time.monotonic() < until:
                    time.sleep(0.2)
                assert process.poll() is None, (folder / "log").read_text()[-3000:]
                kind = luck.choice(["worker", "server", "server", "actor", "node"])
                killed[kind] += kill(kind, folder, cluster, luck)
                stdout.print(f"{dict(killed)}, {len(lines(run))} steps")
            last, until = len(lines(run)), time.monotonic() + 120
            while len(lines(run)) < last + 2 and time.monotonic() < until:
                time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            process.wait(120)
        finally:
            process.kill()
            cluster.shutdown()
    return {
        "kills": killed.total(),
        **{f"{kind}_kills": killed[kind] for kind in ("worker", "server", "actor", "node")},
        **count_groups(run, folder / "journal"),
        "processes_left": sum(len(processes(words, folder)) for words in KINDS.values()),
        "wall_s": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Measure, and append a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        row = measure(args.kills, args.seed, Path(folder))
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    row |= {"load": round(os.getloadavg()[0], 1), "commit": commit}
    is_new = not args.out.exists()
    with args.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    stdout.print(row)


if __name__ == "__main__":
    main()
