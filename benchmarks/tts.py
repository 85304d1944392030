"""Success over cost of test-time scaling, part by part, on `katgym/Arithmetic-v1`.

    python benchmarks/tts.py >> benchmarks/tts.csv              # simulated answers, 2 minutes
    python benchmarks/tts.py --model hf:MODEL --tasks 100       # a model's, by vote
                # `tiny-imitated` is runs/tiny/model of docs/guides/train-lora.md
    python benchmarks/tts.py --figure docs/images/tts.png       # draws the rows of tts.csv

The simulated policy is right with a stated chance. Wrong answers are one and the same, the worst
case for a vote (`alike`), or differ (`apart`). Asked as a judge, it names a right candidate with
chance `JUDGE`; as a critic, it says of a right attempt that it is correct, and of a wrong one that
it is not, with chance `CRITIC`; with a criticism it is right with chance `RETRY`. So these rows
check the machinery against what arithmetic says of these chances (column `expected`), and show how
a part would pay with chances like these; what a model's chances are, its own run says. Tokens of
simulated texts are words. A cost is that of everything played and asked.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import math
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import katgym
from katgym.environment.messages import Message
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.run import EvalResult
from katgym.evaluation.scaling.candidates import count_votes, filter_candidates, read_candidate
from katgym.evaluation.scaling.questions import QuestionEnv
from katgym.evaluation.scaling.scaled_run import play_scaled
from katgym.evaluation.statistics.intervals import success_interval
from katgym.evaluation.statistics.pass_k import pass_at_k
from katgym.evaluation.store import read_rollouts
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import Completion, EpisodeContext, Policy, Sampling, Session

ENV = "katgym/Arithmetic-v1?level=1"
RIGHT, JUDGE, CRITIC, RETRY = 0.6, 0.8, 0.75, 0.75
COLUMNS = (
    *("policy", "part", "best_of", "reflect", "tasks", "success", "low", "high", "expected"),
    *("tokens_in", "tokens_out"),
)
Row = dict[str, object]


class SimulatedPolicy(Policy):
    """Plays, judges and criticises with stated chances."""

    def __init__(self, wrong: str) -> None:
        self.name, self.wrong = f"simulated-{wrong}", wrong

    def start(self, context: EpisodeContext) -> Session:
        return _SimulatedSession(self, context)


class _SimulatedSession(Session):
    def __init__(self, policy: SimulatedPolicy, context: EpisodeContext) -> None:
        self._policy, self._env = policy, context.env
        self._rng = random.Random(context.seed)

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        prompt = "\n".join(message["content"] for message in messages)
        if not isinstance(self._env, QuestionEnv):
            gold = int(self._env.task.answer)
            chance = RETRY if "Your own criticism" in prompt else RIGHT
            text = f"I add them one after the other.\n{self._answer(gold, chance)}"
        elif "BEST: N" in prompt:
            text = self._judge(prompt)
        else:
            text = self._criticise(prompt)
        return Completion(
            message=katgym.assistant(text),
            num_prompt_tokens=len(prompt.split()),
            num_completion_tokens=len(text.split()),
        )

    def _answer(self, gold: int, chance: float) -> str:
        if self._rng.random() < chance:
            return f"Answer: {gold}"
        off = 1 if self._policy.wrong == "alike" else self._rng.randint(1, 10**6)
        return f"Answer: {gold + off}"

    def _judge(self, prompt: str) -> str:
        said = [int(text) for text in re.findall(r"Answer: (-?\d+)", prompt)]
        right = [n for n, value in enumerate(said, 1) if value == _gold(prompt)]
        wrong = [n for n in range(1, len(said) + 1) if n not in right]
        is_found = bool(right) and (not wrong or self._rng.random() < JUDGE)
        return f"BEST: {self._rng.choice(right if is_found else wrong)}"

    def _criticise(self, prompt: str) -> str:
        is_right = f"Answer: {_gold(prompt)}\n" in prompt
        says_right = is_right is (self._rng.random() < CRITIC)
        return "CORRECT" if says_right else "The sum is not carried over; add the digits anew."


def _gold(prompt: str) -> int:
    """Return the sum that a prompt quotes: level 1 is one addition."""
    found = re.search(r"(\d+) \+ (\d+)", prompt)
    assert found is not None
    return int(found[1]) + int(found[2])


def binomial(num: int, p: float) -> float:
    """Return the chance that most of `num` votes are right, half of them on a tie."""
    terms = [math.comb(num, k) * p**k * (1 - p) ** (num - k) for k in range(num + 1)]
    return math.fsum(terms[num // 2 + 1 :]) + (terms[num // 2] / 2 if num % 2 == 0 else 0)


EXPECTED: dict[str, Callable[[int], float]] = {
    # Where attempts differ, there are two answers.
    "judge": lambda k: RIGHT**k + (1 - RIGHT**k - (1 - RIGHT) ** k) * JUDGE,
    # Of one attempt: a right one that is believed or tried again, a wrong one that is tried again.
    "reflect": lambda _: RIGHT * (CRITIC + (1 - CRITIC) * RETRY) + (1 - RIGHT) * CRITIC * RETRY,
}


def vote_rows(name: str, attempts: Sequence[Rollout], *, p: float | None) -> Iterator[Row]:
    """Yield success of votes over 1, 2, 4, ... of a task's attempts, and their bounds.

    Each block of k attempts is one vote, so that all attempts enter every row.
    """
    env = Plan.of(EvalConfig(envs=(ENV,), policy="oracle", num_tasks=1)).envs[0].env
    by_task: dict[str, list[Rollout]] = {}
    for rollout in attempts:
        by_task.setdefault(rollout.task_id, []).append(rollout)
    num = min(map(len, by_task.values()))
    cost = [sum(getattr(r, f"num_{kind}_tokens") for r in attempts) / len(attempts)
            for kind in ("prompt", "completion")]  # fmt: skip
    for k in (2**e for e in range(num.bit_length())):
        voted, bound = [], []
        for task_id, played in by_task.items():
            for start in range(0, num - k + 1, k):
                block = {r.attempt: r for r in played[start : start + k]}
                found = filter_candidates([read_candidate(env, r) for r in block.values()])
                voted.append((task_id, float(block[count_votes(found, num)[0].attempt].is_success)))
            successes = sum(r.is_success for r in played[:num])
            bound.append((task_id, pass_at_k(num, successes, k)))
        shared: Row = {"policy": name, "best_of": k, "reflect": 0, "tasks": len(by_task)}
        shared |= {"tokens_in": round(cost[0] * k), "tokens_out": round(cost[1] * k)}
        yield {**shared, "part": "vote", **_figures(voted), "expected": p and binomial(k, p)}
        mean = sum(value for _, value in bound) / len(bound)
        yield {**shared, "part": "bound", "success": mean, "expected": p and 1 - (1 - p) ** k}


def _figures(rows: Sequence[tuple[str, float]]) -> Row:
    interval = success_interval(rows)
    mean = sum(value for _, value in rows) / len(rows)
    return {"success": mean, **({"low": interval.low, "high": interval.high} if interval else {})}


async def play(
    folder: Path, policy: Policy, tts: str, tasks: int, judge: Policy | None = None
) -> EvalResult:
    """Play one configuration."""
    config = EvalConfig(
        envs=(ENV,), policy=policy.name, num_tasks=tasks, tts=tts, seed=derive_seed("tts"),
        sampling=Sampling(max_tokens=64),
    )  # fmt: skip
    return await play_scaled(Plan.of(config), policy, folder, judge=judge)


async def simulated_rows(folder: Path, tasks: int) -> Iterator[Row]:
    """Return the rows of the simulated policy, part by part."""
    rows: list[Row] = []
    for wrong in ("alike", "apart"):
        policy = SimulatedPolicy(wrong)
        result = await play(folder / f"{wrong}-vote", policy, "best_of=8", tasks)
        attempts = read_rollouts(result.folder / "attempts")
        rows += vote_rows(policy.name, attempts, p=RIGHT if wrong == "alike" else None)
        parts = [("judge", n, 0, True) for n in (2, 4, 8)]
        parts += [("reflect", n, r, False) for n in (1, 4) for r in (1, 2)]
        parts += [("judge and reflect", 4, 2, True)]
        for part, best_of, reflect, has_judge in parts:
            tts = f"best_of={best_of},reflect={reflect}{',judge=simulated' if has_judge else ''}"
            place = folder / f"{wrong}-{best_of}-{reflect}-{has_judge}"
            result = await play(place, policy, tts, tasks, policy if has_judge else None)
            env = next(iter(result.summary.envs.values()))
            row: Row = {"policy": policy.name, "part": part, "best_of": best_of, "reflect": reflect}
            row |= {"tasks": tasks, "success": env.success_rate}
            if (interval := env.success_interval) is not None:
                row |= {"low": interval.low, "high": interval.high}
            if (
                wrong == "alike"
                and part in EXPECTED
                and reflect < 2
                and (best_of, reflect) != (4, 1)
            ):
                row["expected"] = EXPECTED[part](best_of)
            row["tokens_in"] = round(env.num_prompt_tokens / tasks)
            row["tokens_out"] = round(env.num_completion_tokens / tasks)
            rows.append(row)
    return iter(rows)


async def model_rows(folder: Path, uri: str, tasks: int) -> Iterator[Row]:
    """Return the rows of a model's votes."""
    async with aclosing(katgym.policy(uri)) as policy:
        result = await play(folder / "model", policy, "best_of=8", tasks)
    name = Path(uri.partition(":")[2] or uri).name
    return vote_rows(name, read_rollouts(result.folder / "attempts"), p=None)


def draw(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Draw success over tokens, a panel for each policy."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figure, panels = plt.subplots(1, len(policies), figsize=(4.2 * len(policies), 3.4), sharey=True)
    for panel, policy in zip(panels, policies, strict=True):
        mine = [row for row in rows if row["policy"] == policy]
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in mine:
            is_of_retries = row["part"] == "reflect"
            name = f"reflect, best_of={row['best_of']}" if is_of_retries else row["part"]
            tokens = int(row["tokens_in"]) + int(row["tokens_out"])
            curves.setdefault(name, []).append((tokens, float(row["success"])))
        for name, points in curves.items():
            style = ":" if name == "bound" else "-"
            x, y = zip(*sorted(points), strict=True)
            panel.plot(x, y, style, marker="o", markersize=3, label=name)
        panel.set(title=policy, xlabel="tokens a task", ylim=(0, 1.03))
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.legend(fontsize=7, loc="lower right")
    panels[0].set_ylabel("success")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Parse the command line, play, print rows; or draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300, help="tasks of each configuration")
    parser.add_argument("--model", help="URI of a model's policy, in place of the simulated one")
    parser.add_argument("--figure", type=Path, help="draw tts.csv here, and play nothing")
    args = parser.parse_args()
    if args.figure:
        with Path(__file__).with_suffix(".csv").open(newline="") as file:
            draw(list(csv.DictReader(file)), args.figure)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = asyncio.run(
            model_rows(folder, args.model, args.tasks)
            if args.model
            else simulated_rows(folder, args.tasks)
        )
        writer = csv.DictWriter(sys.stdout, COLUMNS, restval="")
        if not args.model:
            writer.writeheader()
        for row in rows:
            writer.writerow({n: round(v, 4) if isinstance(v, float) else v for n, v in row.items()})


if __name__ == "__main__":
    main()
