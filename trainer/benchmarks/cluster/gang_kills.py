"""Random kills of every kind of place under a run that trains: what was lost, trained twice.

    python trainer/benchmarks/cluster/gang_kills.py --kills 100     # to gang_kills.csv; an hour

A run of `katgym train rl` on a Ray cluster of six nodes on this machine: two ranks as one gang, two
rollout workers, a server that Ray places and one that the run starts itself (the tests' stand-in
for vLLM), a sandbox in every episode, from a fleet of three daemons. When it has taken a step since
the last kill, a worker, a node with all on it, a rank, a server, the actor of the placed one or a
daemon is killed with SIGKILL; a node and a daemon come back, the rest is the run's to mend. In the
end every group in the run's folder is counted by the number of its draw: a step has all its groups,
a group all its rollouts, and none is in two steps; and what a server sampled before its weights
were probed. A kind of place is a function of `KINDS`. Not here: workers alone
(`benchmarks/workers.py`), placed servers alone (`kills.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import katgym
from katgym.rollout_store import RolloutStore
from katgym.sandbox import Sandbox, SandboxSpec, shared_backend

ROOT = Path(__file__).parents[3]
CSV = Path(__file__).with_suffix(".csv")
PATHS = [str(Path(__file__).parent), *(str(ROOT / "tests" / p) for p in ("shared", "trainer"))]
PATHS.append(str(ROOT / "tests/trainer/rl"))
GROUPS, GROUP_SIZE = 4, 4
MEMORY = 80_000_000
FLEET, TOKEN = "KATGYM_KILLS_FLEET", "KATGYM_SANDBOXD_TOKEN"
CONFIG = """
[model]
path = "{model}"

[[envs]]
id = "kills/Digits-v0"
num_tasks = 12

[policy]
uri = "vllm"
server_python = "{python}"
max_tokens = 12
max_context_tokens = 400

[[policy.servers]]
gpus = 0

[[policy.servers]]
tags = ["rollout"]

[rollouts]
num_groups = 4
group_size = 4
max_staleness = 1
max_retries = 8

[train]
num_steps = 1000000
learning_rate = 1e-3
seed = 5

[checkpoint]
every_steps = 2

[trainer.ranks]
timeout_s = 120

[cluster]
address = "{address}"
rollout_workers = 2
trainer_ranks = 2
gpus_per_rank = 0
max_rank_restarts = 1000000
"""
HOOKS = """
import pluggy

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("kills/Digits-v0", "gang_kills:Digits", description="Digits, counted in a sandbox.")
"""


class Digits(katgym.Env):
    """Pays for the share of an answer's characters that are digits, as a sandbox counts them."""

    splits = ("train",)
    sandbox: Sandbox | None = None

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-{i}", prompt=f"Digits {i}!") for i in range(20)]

    async def setup(self) -> None:
        self.sandbox = await shared_backend(f"sandboxd:{os.environ[FLEET]}").create(SandboxSpec())

    @katgym.scorer()
    async def share_of_digits(self) -> float:
        """Digits over characters."""
        assert self.sandbox is not None, "set up"
        answer = self.final_answer
        told = await self.sandbox.exec("tr -cd 0-9 | wc -c", stdin=answer.encode())
        return int(told.stdout) / max(1, len(answer))

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.kill()

    def oracle_action(self) -> katgym.Action:
        return "0123456789"


class Daemon:
    """A sandbox daemon at a port of its own, which comes back there."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.folder = f"http://127.0.0.1:{self.port}", folder
        self.process: subprocess.Popen[bytes]
        folder.mkdir()
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        command = [sys.executable, "-m", "katgym", "sandboxd", "--port", str(self.port)]
        env = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)


class Scene:
    """What a run stands on, and what may be killed of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        from hf_server_process import python_for
        from ray.cluster_utils import Cluster as RayCluster
        from rl_play import save_model

        self.folder, self.out, self.rng = folder, folder / "run", random.Random(seed)
        (folder / "kp_kills.py").write_text(HOOKS)
        info = folder / "katgym_plugin_kills-1.0.dist-info"
        info.mkdir()
        about = "Metadata-Version: 2.1\nName: katgym-plugin-kills\nVersion: 1.0\n"
        (info / "METADATA").write_text(about)
        (info / "entry_points.txt").write_text("[katgym]\nkills = kp_kills\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *PATHS, *filter(None, sys.path)])
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", TOKEN: "t" * 32}
        self.daemons = [Daemon(folder / f"daemon-{number}") for number in range(3)]
        os.environ[FLEET] = ",".join(daemon.url for daemon in self.daemons)
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        for _ in range(6):
            self.ray.add_node(num_cpus=1, object_store_memory=MEMORY)
        config = folder / "kills.toml"
        model = save_model(folder / "tiny")
        python = python_for(folder)
        text = CONFIG.format(model=model, python=python, address=self.ray.address)
        config.write_text(text)
        command = [sys.executable, "-m", "katgym", "train", "rl", str(config)]
        with (folder / "log").open("wb") as log:
            self.run = subprocess.Popen(
                [*command, "--out", str(self.out)], stdout=log, stderr=subprocess.STDOUT
            )

    def told(self, file: str, key: str) -> list[dict[str, Any]]:
        """Return what the run's file says of places of a kind that are up."""
        try:
            found = json.loads((self.out / file).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return [item for item in found[key] if item.get("is_up")]

    def num_steps(self) -> int:
        """Return the steps that were taken."""
        file = self.out / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for_steps(self, num: int) -> None:
        """Return once so many were taken."""
        while self.num_steps() < num:
            assert self.run.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)

    def close(self) -> None:
        """End what runs."""
        for process in (self.run, *(daemon.process for daemon in self.daemons)):
            process.kill()
            process.wait()
        self.ray.shutdown()


def kill_one(pids: list[int], rng: random.Random) -> bool:
    """Kill one process of these; return whether there was one."""
    for pid in rng.sample(pids, len(pids)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def pids_of(items: list[dict[str, Any]]) -> list[int]:
    """Return the processes that names of places tell."""
    return [int(n) for item in items for n in re.findall(r"\(process (\d+)", item["name"])]


def kill_worker(scene: Scene) -> bool:
    """Kill a rollout worker."""
    return kill_one(pids_of(scene.told("cluster.json", "workers")), scene.rng)


def kill_rank(scene: Scene) -> bool:
    """Kill a rank."""
    return kill_one(pids_of(scene.told("ranks.json", "ranks")), scene.rng)


def ancestors(pid: int) -> Iterator[bytes]:
    """Yield what the processes above one are called."""
    while pid > 1:
        place = Path(f"/proc/{pid}")
        pid = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        yield Path(f"/proc/{pid}/cmdline").read_bytes()


def server_pids(scene: Scene, *, is_placed: bool) -> list[int]:
    """Return the model servers that Ray has placed, or those that the first rank has started."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_text().split("\0")
            is_server = any(word.endswith("hf_server_process.py") for word in words)
            if is_server and str(scene.folder / "tiny") in words:
                above = ancestors(int(place.name))
                if any(name.startswith(b"ray::ServerActor") for name in above) == is_placed:
                    found.append(int(place.name))
    return sorted(found)


def kill_own_server(scene: Scene) -> bool:
    """Kill the model server that the run has started."""
    return kill_one(server_pids(scene, is_placed=False), scene.rng)


def kill_placed_server(scene: Scene) -> bool:
    """Kill the model server that Ray has placed."""
    return kill_one(server_pids(scene, is_placed=True), scene.rng)


def kill_server_actor(scene: Scene) -> bool:
    """Kill the actor that a placed server belongs to."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_actor = (place / "cmdline").read_bytes().startswith(b"ray::ServerActor")
            if is_actor and str(scene.folder).encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return kill_one(sorted(found), scene.rng)


def kill_daemon(scene: Scene) -> bool:
    """Kill a sandbox daemon with its sandboxes, and start it again."""
    daemon = scene.rng.choice(scene.daemons)
    daemon.process.kill()
    daemon.process.wait()
    daemon.start()
    return True


def kill_node(scene: Scene) -> bool:
    """Kill a node and all that runs there, and add another."""
    nodes = sorted(scene.ray.worker_nodes, key=lambda node: node.node_id)
    scene.ray.remove_node(scene.rng.choice(nodes), allow_graceful=False)
    scene.ray.add_node(num_cpus=1, object_store_memory=MEMORY)
    return True


KINDS: Mapping[str, tuple[float, Callable[[Scene], bool]]] = {
    "worker": (0.3, kill_worker),
    "daemon": (0.2, kill_daemon),
    "server": (0.1, kill_own_server),
    "placed_server": (0.1, kill_placed_server),
    "server_actor": (0.1, kill_server_actor),
    "rank": (0.1, kill_rank),
    "node": (0.1, kill_node),
}
"""Kind -> its share of the kills, and what kills one; False where none is up."""


def count_groups(out: Path) -> dict[str, int]:
    """Return what became of groups, by what the run recorded."""
    lines = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    with RolloutStore.open(out / "rollouts", create=False) as store:
        records = [
            (record.metadata["step"], record.metadata["draw"]["number"])
            for record in store.sessions()
            if record.metadata["step"] <= lines[-1]
        ]
    sizes = Counter(records)
    steps = Counter(number for _, number in sizes)
    by_step = Counter(step for step, _ in sizes)
    newest = min(number for step, number in sizes if step >= lines[-1] - 1)
    return {
        "steps": len(lines),
        "groups": len(sizes),
        "groups_lost": sum(GROUPS - by_step[step] for step in range(1, lines[-1] + 1))
        + sum(number not in steps for number in range(newest))
        + abs(lines[-1] - len(set(lines))),
        "groups_doubled": sum(size != GROUP_SIZE for size in sizes.values()),
        "groups_trained_twice": sum(num > 1 for num in steps.values()),
    }


def count_early(journal: Path) -> int:
    """Return how often a server sampled before it was probed."""
    probed, early = set(), 0
    for line in journal.read_text().splitlines():
        url, what, _ = line.split()
        if what == "probe":
            probed.add(url)
        early += what == "sample" and url not in probed
    return early


def measure(num_kills: int, seed: int, max_s: float, folder: Path) -> dict[str, Any]:
    """Kill until there were so many, or the time is over; return the row."""
    scene, began = Scene(folder, seed), time.monotonic()
    kills: Counter[str] = Counter()
    try:
        scene.wait_for_steps(2)
        names, shares = list(KINDS), [share for share, _ in KINDS.values()]
        first = scene.rng.sample(names, len(names))  # each once, then as its share is
        while sum(kills.values()) < num_kills and time.monotonic() - began < max_s:
            scene.wait_for_steps(scene.num_steps() + 1)  # it trains, whatever was killed before
            time.sleep(scene.rng.uniform(0, 2))
            name = first[-1] if first else scene.rng.choices(names, shares)[0]
            if KINDS[name][1](scene):
                kills[name] += 1
                first = first[:-1]
                print(f"{dict(kills)}, {scene.num_steps()} steps", flush=True)
        scene.wait_for_steps(scene.num_steps() + 3)
        scene.run.send_signal(signal.SIGINT)
        code = scene.run.wait(120)
        assert code == 130, code
    finally:
        scene.close()
    wall_s = round(time.monotonic() - began)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    by_kind = {f"{name}_kills": kills[name] for name in KINDS}
    found = {"kills": sum(kills.values()), **by_kind, **count_groups(scene.out)}
    found["samples_before_a_probe"] = count_early(scene.folder / "journal")
    return {**found, "wall_s": wall_s, "load": round(os.getloadavg()[0], 1), "commit": commit}


def main() -> None:
    """Measure, print the row and append it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-s", type=float, default=7200, help="wall seconds of kills")
    parser.add_argument("--folder", type=Path, help="is kept, for a look at what went wrong")
    args = parser.parse_args()
    sys.path += PATHS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = args.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        row = measure(args.kills, args.seed, args.max_s, folder.absolute())
    print(row)
    is_new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
