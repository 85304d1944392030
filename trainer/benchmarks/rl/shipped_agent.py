"""A coding agent as it is shipped, trained by reinforcement through the gateway on two cores.

    KATGYM_AGENTS=$(.ci/agents) python trainer/benchmarks/rl/shipped_agent.py \
        --out trainer/benchmarks/rl/shipped_agent.csv

The agent is pi, unmodified: its process, its loop, its `write` tool, its own options for the system
prompt and the choice of tools. It is told `Write 4.` and works in an empty folder; the reward is 1
if a file `answer` holds exactly that digit once pi has ended, else 0. The model is a new one with
random weights, which first imitates pi's session with digits at random: it calls the tool, mostly
with a wrong one. Then `katgym train rl` trains it behind the gateway while pi plays. There is one
task, so nothing is said of others. Seeds differ in reinforcement alone. Each step is a row; printed
are means with 95 % intervals, of rollouts (Wilson, seeds pooled) and of seeds (t). A second run
goes on where the first was stopped. Not here: running pi, and its demonstrations
(`shipped_agent_demonstrations.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure
from runs import journal
from shipped_agent_demonstrations import PROMPT, RIGHT, run_pi, write_model_and_demonstrations

from katgym.console import stdout
from katgym.evaluation.statistics.intervals import Interval, t_interval, wilson_interval
from katgym.gateway import AgentSession, GatewayClient
from katgym.vllm_server import VllmServer, VllmServerConfig

RUNS = Path("runs/rl-shipped-agent")
KEY = "owner-key"
NUM_GROUPS, GROUP_SIZE, NUM_AT_ONCE = 2, 8, 6
MAX_TOKENS = 160
"""Of a session: a call and a last word have about 30."""
COLUMNS = ("seed", "step", "rollouts", "success", "turns", "staleness", "policy_kl", "total_s")
SFT = """
[model]
path = "{folder}/new-model"
[data]
rollouts = ["{folder}/demonstrations.jsonl"]
[train]
num_steps = {num_steps}
batch_rollouts = 24
optimizer = "muon"
learning_rate = 3e-3
[checkpoint]
every_steps = 1000
"""
RL = """
[model]
path = "{model}"
[policy]
uri = "vllm:{server}#tiny"
gateway = "{gateway}"
max_context_tokens = 1024
max_tokens = 64
[rollouts]
store = "{store}"
num_groups = {num_groups}
group_size = {group_size}
max_staleness = 1
[train]
num_steps = {num_steps}
optimizer = "muon"
learning_rate = 2.5e-3
seed = {seed}
[checkpoint]
every_steps = 5
"""


def run() -> int:
    """Train every seed that is missing, write the rows, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6, help="of reinforcement, a seed")
    parser.add_argument("--sft-steps", type=int, default=60, help="of imitation")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs")
    parser.add_argument("--out", type=Path, default=Path("shipped_agent.csv"), help="the rows")
    args = parser.parse_args()
    _make_model(RUNS, num_steps=args.sft_steps)
    config = VllmServerConfig(
        model=str(RUNS / "sft/model"), served_name="tiny", dtype="float32", max_model_len=1024,
        has_rl_routes=True, extra_args=("--enforce-eager",), log_file=RUNS / "vllm.log",
    )  # fmt: skip
    with VllmServer(config) as server:
        for seed in range(args.seeds):
            _reinforce(RUNS / f"seed-{seed}", server.url, seed, num_steps=args.steps)
            _write_rows(args.out, range(seed + 1))
    _print_summary(args.out)
    _draw(args.out)
    return 0


def _make_model(folder: Path, *, num_steps: int) -> None:
    """Make a model that imitates demonstrations."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "demonstrations.jsonl").exists():
        write_model_and_demonstrations(folder, folder / "pi", seed=0)
    (folder / "sft.toml").write_text(SFT.format(folder=folder, num_steps=num_steps))
    _katgym("train", "sft", str(folder / "sft.toml"), "--out", str(folder / "sft"))


def _reinforce(folder: Path, server: str, seed: int, *, num_steps: int) -> None:
    """Train the model behind a gateway of its own while pi plays."""
    if (folder / "rl").exists() and len(journal(folder / "rl", "metrics.jsonl")) >= num_steps:
        return
    folder.mkdir(exist_ok=True)
    with _gateway(server, folder / "store") as gateway:
        text = RL.format(
            model=RUNS / "sft/model", server=server, gateway=gateway, store=folder / "store",
            num_groups=NUM_GROUPS, group_size=GROUP_SIZE, num_steps=num_steps, seed=seed,
        )  # fmt: skip
        (folder / "rl.toml").write_text(text)
        command = [sys.executable, __file__, "--play", gateway, str(seed)]
        with subprocess.Popen(command, env={**os.environ, "KATGYM_GATEWAY_KEY": KEY}) as player:
            try:
                _katgym("train", "rl", str(folder / "rl.toml"), "--out", str(folder / "rl"))
            finally:
                player.terminate()


def _katgym(*arguments: str) -> None:
    environ = {**os.environ, "KATGYM_GATEWAY_KEY": KEY}
    subprocess.run([sys.executable, "-m", "katgym", *arguments], check=True, env=environ)


@contextmanager
def _gateway(upstream: str, store: Path) -> Iterator[str]:
    """Start a gateway that lets agents play one step ahead; yield its URL."""
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream, "--port", "0",
               "--store", str(store), "--model", "tiny", "--max-staleness", "1",
               "--sessions-per-version", str(NUM_GROUPS * GROUP_SIZE)]  # fmt: skip
    for name, value in {"temperature": 1.0, "top_p": 1.0, "top_k": 0}.items():
        command += ["--set", f"sampling.{name}={value}"]
    environ = {**os.environ, "KATGYM_GATEWAY_KEY": KEY}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2].rstrip(",")
        finally:
            process.terminate()


async def _play(url: str, seed: int) -> None:
    """Play group after group, so many pi at once, until this process is ended."""
    places: asyncio.Queue[Path] = asyncio.Queue()
    for number in range(NUM_AT_ONCE):
        places.put_nowait(RUNS / f"pi/{number}")

    async def episode(group_id: str) -> None:
        place = await places.get()
        try:
            options = {"group_id": group_id, "max_tokens": MAX_TOKENS, "timeout_s": 600}
            async with gateway.session(**options) as session:
                await session.reward(await asyncio.to_thread(_reward, session, place))
        finally:
            places.put_nowait(place)

    async def player(numbers: Iterator[int]) -> None:
        for number in numbers:
            async with asyncio.TaskGroup() as group:
                for _ in range(GROUP_SIZE):
                    group.create_task(episode(f"{seed}-{number}"))

    async with GatewayClient(url) as gateway, asyncio.TaskGroup() as players:
        numbers = itertools.count()
        for _ in range(2):  # while one waits for its last pi, the other has the places
            players.create_task(player(numbers))


def _reward(session: AgentSession, place: Path) -> float:
    """Return 1.0 if pi leaves a file with nothing but the digit that it was told, else 0.0."""
    answer = run_pi(session.openai_base_url, session.key, place, PROMPT) / "answer"
    return float(answer.is_file() and answer.read_bytes() == RIGHT.encode())


def _write_rows(out: Path, seeds: Sequence[int]) -> None:
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for seed in seeds:
            for line in journal(RUNS / f"seed-{seed}/rl", "metrics.jsonl"):
                found = [line.get(name, "") for name in (
                    "rollout/num_rollouts", "rollout/success", "rollout/turns", "rollout/staleness",
                    "train/policy_kl", "time/total_s",
                )]  # fmt: skip
                shown = [f"{x:.4g}" if isinstance(x, float) else x for x in found]
                writer.writerow([seed, line["step"], *shown])


def _print_summary(out: Path) -> None:
    """Print each step's success with the interval of its rollouts, and that of the seeds' means."""
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for step, same in itertools.groupby(sorted(rows, key=_step), key=_step):
        found = {row["seed"]: (float(row["success"]), float(row["rollouts"])) for row in same}
        num = sum(num for _, num in found.values())
        rate = sum(rate * num for rate, num in found.values()) / num
        of_rollouts = wilson_interval(rate, num)
        told = f"step {step}: success {rate:.3f}, of {num:g} rollouts {_shown(of_rollouts)}"
        of_seeds = t_interval((seed, rate) for seed, (rate, _) in found.items())
        told += "" if of_seeds is None else f", of {len(found)} seeds {_shown(of_seeds)}"
        stdout.print(told, markup=False, highlight=False)


def _draw(out: Path) -> None:
    """Draw every seed's success by step, with the interval of its rollouts, beside the rows."""
    figure = Figure(figsize=(6.0, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for seed in sorted({row["seed"] for row in rows}):
        own = [row for row in rows if row["seed"] == seed]
        steps = [_step(row) for row in own]
        rates = [float(row["success"]) for row in own]
        found = [wilson_interval(float(r["success"]), float(r["rollouts"])) for r in own]
        axes.plot(steps, rates, marker="o", label=f"seed {seed}")
        axes.fill_between(steps, [i.low for i in found], [i.high for i in found], alpha=0.15)
    axes.set(xlabel="step", ylabel="pi left the right file", ylim=(0, 1))
    axes.legend()
    figure.savefig(out.with_suffix(".png"))


def _shown(interval: Interval) -> str:
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _step(row: dict[str, str]) -> int:
    return int(row["step"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        asyncio.run(_play(sys.argv[2], int(sys.argv[3])))
    else:
        raise SystemExit(run())
