"""Verification of runs: honest ones that it must not refuse, and its time beside the run's.

    python benchmarks/verify.py honest --runs 200 > benchmarks/verify_honest.csv
    python benchmarks/verify.py time > benchmarks/verify.csv
    python benchmarks/verify.py append > benchmarks/verify_append.csv

`honest` plays small runs of many envs, policies, samplings and limits. Each is played by processes
that a `kill -9` ends in between, or Ctrl-C, or a policy that fails, until one ends by itself; some
are then sealed. A row is a run: how it was played, how many processes were killed, what
`katgym verify` said. `time` measures the commands `katgym eval` and `katgym verify`, by the wall.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import importlib
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from katgym import Reward, RolloutStatus, Sampling, TokenRecord, Turn, assistant, user
from katgym.errors import PolicyError
from katgym.evaluation import run as run_module
from katgym.evaluation.chain import first_link
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.store import PlanStore
from katgym.evaluation.verification.verify import verify_run
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.version_span import one_span
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.rollouts import as_session

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

ENVS = (
    "katgym/Arithmetic-v1",
    "katgym/Arithmetic-v1?level=7",
    "katgym/TreasureHunt-v1",
    "katgym/TreasureHunt-v1?level=6",
    "katgym/MathProblems-v1",
    "katgym/Chess-v1",
    "katgym/OpenSpiel-v0?game=tic_tac_toe",
    "katgym/OpenSpiel-v0?game=connect_four&opponent=mcts&max_turns=4",
    "katgym/MathCode-v1",
)
PRELOADED = [
    *("katgym.evaluation.run", "katgym_envs.math.code.env"),
    *("katgym_envs.math.arithmetic.env", "katgym_envs.games.treasure_hunt.env"),
    *("katgym_envs.games.chess_game.env", "katgym_envs.games.openspiel.env"),
]
"""Modules that every process begins with."""
ENDS = ("whole", "killed", "killed_twice", "interrupted", "flaky", "sealed")
"""How a run comes about."""


class Flaky(Policy):
    """A policy of which some answers fail, as a server's do."""

    def __init__(self, policy: Policy, rng: random.Random) -> None:
        self.name, self.policy, self.rng = policy.name, policy, rng

    def start(self, context: EpisodeContext) -> Session:
        session = self.policy.start(context)
        complete = session.complete

        async def fail(messages: Any, *, max_tokens: int) -> Completion:
            if self.rng.random() < 0.15:
                raise PolicyError("connection refused", kind="policy_unavailable")
            return await complete(messages, max_tokens=max_tokens)

        session.complete = fail  # type: ignore[method-assign]  # one session of a double
        return session


def end_after(
    count: int, number: int, delay_s: float
) -> Callable[[PlanStore], contextlib.AbstractContextManager[Callable[[Rollout], None]]]:
    """Return a watch that sends this process a signal soon after `count` rollouts are on disk."""
    seen: list[Rollout] = []

    def notify(rollout: Rollout) -> None:
        seen.append(rollout)
        if len(seen) == count:
            threading.Timer(delay_s, os.kill, (os.getpid(), number)).start()

    return lambda _: contextlib.nullcontext(notify)


def play(config: EvalConfig, folder: Path, end: str, seed: int) -> None:
    """Play a run, or a part of it, in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TQDM_DISABLE"] = "1"
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for this process's life
    rng = random.Random(seed)
    watch = run_module.watch_nothing
    if end in ("killed", "interrupted"):
        number = signal.SIGKILL if end == "killed" else signal.SIGINT
        most = config.num_tasks * config.group_size * len(config.envs) // 2
        watch = end_after(rng.randint(1, max(1, most)), number, rng.choice((0.0, 0.002, 0.02)))
    if end == "flaky":
        make = run_module.make_policy
        run_module.make_policy = lambda uri: Flaky(make(uri), rng)
    with contextlib.suppress(KeyboardInterrupt, PolicyError):
        asyncio.run(run_module.evaluate(config, folder, watch=watch))


def draw_config(rng: random.Random, index: int, folder: Path) -> EvalConfig:
    """Draw a small run."""
    if index % 16 == 7:
        model = folder / "model"
        return EvalConfig(
            envs=("katgym/Arithmetic-v1", "katgym/OpenSpiel-v0?game=tic_tac_toe&max_turns=3"),
            policy=f"hf:{model}",
            num_tasks=rng.randint(1, 3),
            group_size=rng.randint(1, 3),
            seed=rng.randrange(10**6),
            sampling=Sampling(
                temperature=rng.choice((0.0, 0.5, 1.0, 1.5)),
                top_p=rng.choice((1.0, 0.9)),
                top_k=rng.choice((0, 20)),
                max_tokens=rng.choice((8, 24)),
            ),
            limits=Limits(max_tokens=rng.choice((None, 40))),
            max_concurrency=rng.choice((1, 4, 16)),
        )
    script = folder / "script.jsonl"
    return EvalConfig(
        envs=tuple({env.partition("?")[0]: env for env in rng.sample(ENVS[:8], 2)}.values())
        if index % 20
        else (ENVS[8],),
        policy=rng.choice(("oracle", "random", "random", "noop", f"scripted:{script}")),
        num_tasks=rng.randint(1, 4),
        group_size=rng.randint(1, 2),
        seed=rng.randrange(10**6),
        limits=Limits(max_turns=rng.choice((None, None, 1, 2))),
        max_concurrency=rng.choice((1, 4, 16)),
        max_retries=rng.choice((0, 1)),
    )


def judge(folder: Path, answer: Path) -> None:
    """Verify a run in a process of its own."""
    report = asyncio.run(verify_run(folder))
    answer.write_text(json.dumps(report.to_json()))


def write_model(folder: Path) -> None:
    """Write the tiny model."""
    from verify_runs import tiny_model

    tiny_model(folder)


def honest(first: int, num_runs: int) -> Iterator[dict[str, Any]]:
    """Play runs and verify them; yield a row for each."""
    for module in PRELOADED:
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")  # this process never has a thread

    def run(work: Callable[..., None], *arguments: Any) -> int | None:
        process = context.Process(target=work, args=arguments)
        process.start()
        process.join()
        return process.exitcode

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        run(write_model, root / "model")
        call = assistant("", [("calculator", {"expression": "1 + 2"}), ("inspect", {})])
        (root / "script.jsonl").write_text(f"{json.dumps(call)}\n{json.dumps('Answer: 3')}\n")
        for index in range(first, first + num_runs):
            rng = random.Random(index)
            config, folder = draw_config(rng, index, root), root / str(index)
            end = ENDS[index % len(ENDS)]
            ends = {"killed_twice": ["killed", "killed"], "whole": [], "sealed": []}.get(end, [end])
            num_killed = 0
            for part in [*ends, "whole"]:
                seed = rng.randrange(10**6)
                num_killed += run(play, config, folder, part, seed) == -signal.SIGKILL
            if end == "sealed":
                with RolloutStore.open(folder) as store:
                    store.seal()
            run(judge, folder, answer := root / f"{index}.json")
            report = json.loads(answer.read_text())
            if report["verdict"] != "verified":
                print(config, end, json.dumps(report), file=sys.stderr)
            yield {
                "run": index,
                "policy": config.policy.partition(":")[0],
                "envs": " ".join(config.envs),
                "played": end,
                "rollouts": report["checks"]["files"]["num_verified"],
                "killed": num_killed,
                "segments": report["num_segments"],
                "verdict": report["verdict"],
                "grounds": report["grounds"],
            }


TIMED = {
    "smollm2, Arithmetic": ["katgym/Arithmetic-v1", "--policy", "smollm2", "--max-tokens", "96"],
    "smollm2, MathProblems": ["katgym/MathProblems-v1", "--policy", "smollm2"],
    "random, Arithmetic and TreasureHunt": [
        *("katgym/Arithmetic-v1", "katgym/TreasureHunt-v1", "--policy", "random"),
    ],
}


def measure(num_tasks: int) -> Iterator[dict[str, Any]]:
    """Time evaluations and their verification with and without re-scoring."""

    def wall_s(*arguments: str) -> float:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "katgym", *arguments]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.decode()[-2000:] + done.stdout.decode()[-2000:])
        return time.perf_counter() - begun

    for kind, arguments in TIMED.items():
        with tempfile.TemporaryDirectory() as name:
            folder = str(Path(name) / "run")
            tasks = ["--tasks", str(num_tasks), "--group-size", "2", "--out", folder]
            eval_s = wall_s("eval", *arguments, *tasks)
            verify_s = wall_s("verify", folder, "--set", "rescore_tokens=0")
            rescore_s = wall_s("verify", folder)
            yield {
                "kind": kind,
                "rollouts": 2 * num_tasks * (1 + kind.count(" and ")),
                "eval_s": f"{eval_s:.1f}",
                "verify_s": f"{verify_s:.2f}",
                "verify_percent": f"{100 * verify_s / eval_s:.1f}",
                "rescore_s": f"{rescore_s:.2f}",
                "load": f"{os.getloadavg()[0]:.1f}",
            }


def measure_append(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the CPU time of writing a rollout with its link and without, both in turn."""
    rng = random.Random(0)
    ids = [rng.randrange(150_000) for _ in range(576)]
    for num_turns in (1, 20):
        turns = [
            Turn(
                messages=[user("x" * 1024)],
                answer=assistant("y" * 1024),
                tokens=TokenRecord(
                    prompt_ids=ids[:512],
                    completion_ids=ids[512:],
                    policy_logprobs=[-0.5] * 64,
                    version_spans=one_span(0, 64),
                ),
                num_prompt_tokens=512,
                num_completion_tokens=64,
            )
            for _ in range(num_turns)
        ]
        with tempfile.TemporaryDirectory() as name, RolloutStore.open(name) as store:
            link = first_link({})
            times: dict[bool, list[float]] = {True: [], False: []}
            for index in range(2 * repeats):
                has_link = bool(index % 2)
                rollout = Rollout(
                    env_id="x/Y-v0",
                    plugin_version="1",
                    policy="hf:x",
                    task_id="t",
                    task_sha256="",
                    split="test",
                    seed=0,
                    attempt=index,
                    episode_id=str(index),
                    seat="player",
                    status=RolloutStatus.TERMINATED,
                    reward=Reward(value=1.0),
                    turns=turns,
                )
                start = time.process_time()
                session = as_session(rollout, group_id="g", metadata={}, ended_s=0.0)
                if has_link:
                    link = link.extend(session)
                store.add_sessions([session], is_durable=True)
                times[has_link].append(1e6 * (time.process_time() - start))
        without, with_link = (statistics.median(times[key]) for key in (False, True))
        yield {
            "turns": num_turns,
            "tokens": 576 * num_turns,
            "without_cpu_us": round(without),
            "with_cpu_us": round(with_link),
            "percent": round(100 * (with_link / without - 1), 1),
            "load": round(os.getloadavg()[0], 1),
        }


def main() -> None:
    """Parse the command line and print rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["honest", "time", "append"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first run (0)")
    parser.add_argument("--tasks", type=int, default=8)
    args = parser.parse_args()
    writer = None
    rows = {
        "honest": lambda: honest(args.first, args.runs),
        "time": lambda: measure(args.tasks),
        "append": lambda: measure_append(args.runs),
    }
    for row in rows[args.what]():
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
