"""Three pretended machines that share one folder, Ray on them, and commands that run there."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pretended_hosts import PretendedHosts, pretended_hosts
from waiting import wait_until

LIMIT_S = 1800.0
"""Of what takes Ray a minute to notice, on a busy machine."""
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
HOOKS = """
import pluggy

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("paced/Paced-v0", "kp_paced_env:Paced", description="It waits where it is told to.")
    register("paced/Boxed-v0", "kp_paced_env:Boxed", description="It plays in a sandbox.")
    register("paced/Digits-v0", "kp_paced_env:Digits", description="Answer in digits.")
"""
ENVS = """
import asyncio, glob, os, katgym
from katgym.sandbox import SandboxSpec, shared_backend

class Paced(katgym.Env):
    '''Episodes take a moment; while FOLDER/hold is there, only the first ones end.'''

    splits = ("train", "test")

    def __init__(self, *, folder, num_free=40, **kwargs):
        super().__init__(**kwargs)
        self.folder, self.num_free = folder, num_free

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"{split}-{n}", prompt=f"Say {n}", answer=str(n))
                for n in range(1000)]

    async def setup(self):
        with open(f"{self.folder}/begun-{os.uname().nodename}", "a") as file:
            file.write(f"{self.task.task_id}\\n")
        await asyncio.sleep(0.1)
        if self.num_begun() >= self.num_free:
            while os.path.exists(f"{self.folder}/hold"):
                await asyncio.sleep(0.1)

    def num_begun(self):
        files = glob.glob(f"{self.folder}/begun-*")
        return sum(len(open(file).readlines()) for file in files)

    def oracle_action(self):
        return self.task.answer

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer


class Boxed(Paced):
    def __init__(self, *, sandbox, **kwargs):
        super().__init__(**kwargs)
        self.sandbox, self.box = sandbox, None

    async def setup(self):
        self.box = await shared_backend(self.sandbox).create(SandboxSpec())
        await self.box.exec(f"echo {self.task.answer} > /tmp/it")
        await super().setup()
        self.found = (await self.box.exec("cat /tmp/it")).text().strip()

    async def teardown(self):
        box, self.box = self.box, None
        if box is not None:
            await box.kill()

    def oracle_action(self):
        return self.found


class Digits(katgym.Env):
    splits = ("train",)

    def __init__(self, *, folder, **kwargs):
        super().__init__(**kwargs)
        self.folder = folder

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"{split}-{i}", prompt=f"Digits {i}!") for i in range(20)]

    async def setup(self):
        while os.path.exists(f"{self.folder}/hold"):
            await asyncio.sleep(0.1)

    @katgym.scorer()
    def share_of_digits(self):
        answer = self.final_answer
        return sum(c.isdigit() for c in answer) / max(1, len(answer))
"""
LOST_HEAD = "Failed to connect to GCS"
"""Ray's last word, as docs/cluster has it."""
CONDITIONS = ("plain", "slow network", "clocks apart")


class Command:
    """A command that runs on a machine; what it prints is in a file."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def said(self) -> str:
        return " ".join(self.log.read_text(errors="replace").split())

    def until(self, is_so: Callable[[], Any], what: str) -> Any:
        """Wait for something that happens while it runs."""

        def is_so_while_it_runs() -> Any:
            found = is_so()
            assert found or self.process.poll() is None, self.log.read_text()
            return found

        return wait_until(is_so_while_it_runs, what, limit_s=LIMIT_S)

    def end(self, code: int = 0) -> str:
        """Wait for its end, and return what it said."""
        self.process.wait(timeout=LIMIT_S)
        assert self.process.returncode == code, self.log.read_text()
        return self.said


class Machines:
    """Three machines, node1 to node3; nobody knows a name but the own, as Debian writes it."""

    def __init__(self, hosts: PretendedHosts, folder: Path) -> None:
        self.hosts, self.folder, self.addresses = hosts, folder, hosts.addresses
        self._num_logs = 0
        self._clocks: dict[int, list[str]] = {}
        for host in range(len(hosts.addresses)):
            hosts.write_names(host, f"127.0.1.1 node{host + 1}")

    def set_condition(self, condition: str) -> None:
        """Have the network be slow and lossy, or clocks go an hour apart."""
        if condition == "slow network":
            for host in range(len(self.addresses)):
                self.hosts.slow_down(host, delay_s=0.05, loss=0.01)
        if condition == "clocks apart":
            clock = self.folder / "shifted_clock.so"
            source = Path(__file__).parents[1] / "shared/shifted_clock.c"
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", clock, source], check=True)
            for host, shift in ((1, "3600"), (2, "-3600")):
                self._clocks[host] = ["env", f"LD_PRELOAD={clock}", f"CLOCK_SHIFT_S={shift}"]
                now = [self._run(h, "date", "+%s") for h in (0, host)]
                assert abs(int(now[1]) - int(now[0]) - int(shift)) < 600, "it goes wrong"

    def find_host(self, node: str) -> int:
        """Return which machine a node of Ray is, by how its name begins."""
        code = "import ray; ray.init('auto', log_to_driver=False); print(*("
        code += "n['NodeID'] + '=' + n['NodeManagerAddress'] for n in ray.nodes()))"
        told = self._run(0, "python", "-c", code).split()
        (address,) = {pair.split("=")[1] for pair in told if pair.startswith(node)}
        return self.addresses.index(address)

    def start_ray(self, host: int, num_cpus: int = 1, *, head: int = 0) -> None:
        """Have a machine begin a cluster, or join it."""
        where = ["--head", "--include-dashboard=false"]
        if host != head:
            where = [f"--address={self.addresses[head]}:6379"]
        self._run(
            host, "ray", "start", *where, f"--node-ip-address={self.addresses[host]}",
            f"--num-cpus={num_cpus}", "--object-store-memory=80000000",
        )  # fmt: skip

    def end_ray(self, host: int) -> None:
        """End what a machine has of a cluster, so that it can join one again."""
        self._run(host, "ray", "stop", "--force", "--grace-period=20")

    def start(self, host: int, *command: str, **env: str) -> Command:
        """Start a command on a machine."""
        self._num_logs += 1
        log = self.folder / f"log-{self._num_logs}"
        log.touch()
        told = ["bash", "-c", 'exec "$@" > "$0" 2>&1', str(log), *self._clock(host), *command]
        return Command(self.hosts.start(host, *told, env=self._env | env), log)

    def katgym(self, host: int, *words: str | Path, **env: str) -> Command:
        """Start katgym on a machine."""
        return self.start(host, "python", "-m", "katgym", *map(str, words), **env)

    def _run(self, host: int, *command: str) -> str:
        return self.hosts.run(host, *self._clock(host), *command, env=self._env)

    def _clock(self, host: int) -> list[str]:
        """Return the beginning of a command that reads a machine's clock."""
        return self._clocks.get(host, [])

    @property
    def _env(self) -> dict[str, str]:
        return RAY | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}

    def write_plugin(self) -> None:
        """Write a plugin that all machines see: env paced/Paced-v0."""
        (self.folder / "kp_paced.py").write_text(HOOKS)
        (self.folder / "kp_paced_env.py").write_text(ENVS)
        info = self.folder / "katgym_plugin_paced-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: katgym-plugin-paced\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text("[katgym]\npaced = kp_paced\n")

    def begun(self) -> Counter[str]:
        """Return how often each task was begun, anywhere."""
        return Counter(
            line for file in self.folder.glob("begun-*") for line in file.read_text().splitlines()
        )


@contextlib.contextmanager
def three_machines(folder: Path) -> Iterator[Machines]:
    """Yield three machines that share a folder."""
    with pretended_hosts(3, folder) as hosts:
        yield Machines(hosts, folder)
