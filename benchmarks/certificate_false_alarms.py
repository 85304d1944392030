"""Counts false alarms of `katgym check`: sound envs of ten kinds, drawn from seeds.

    python benchmarks/certificate_false_alarms.py [--seeds 20] [--out certificate_false_alarms.csv]

A sound env is flagged if any check of its certificate fails. Not here: faults that have to be found
(tests/katgym/certificate).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import katgym
from katgym.certificate.certify import CHECKS

SIZES = {"train": 400, "validation": 60, "test": 150}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def digest(*parts: object) -> int:
    """Return a number that only reading the parts tells."""
    return int(hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:12], 16)


def word(rng: random.Random, low: int = 4, high: int = 9) -> str:
    """Return a random word."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(low, high)))


class SoundEnv(katgym.Env):
    """One message of `Answer: ...`; `kind` says what is asked, `seed` draws everything."""

    default_max_turns = 1

    def __init__(self, *, kind: str = "sum", seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind, self.seed = kind, seed

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        tasks = []
        for index in range(SIZES[split]):
            rng = random.Random(f"{self.kind}/{self.seed}/{split}/{index}")
            prompt, answer, data = getattr(self, f"draw_{self.kind}")(rng)
            tasks.append(
                katgym.Task(task_id=f"{split}-{index:04d}", prompt=prompt, answer=answer, data=data)
            )
        return tasks

    def draw_sum(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        a, b = rng.randint(0, 10**5), rng.randint(0, 10**5)
        return f"What is {a} + {b}?", str(a + b), {}

    def draw_lettered(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        num = 3 + self.seed % 4
        options = [word(rng, 3, 12) for _ in range(num)]
        gold = rng.randrange(num)
        lines = [f"{'ABCDEF'[i]}) {text}" for i, text in enumerate(options)]
        key = digest(options[gold])
        return "\n".join([f"Whose digest is {key}?", *lines]), "ABCDEF"[gold], {}

    def draw_inline(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        options = [word(rng, 3, 12) for _ in range(4)]
        gold = rng.choice(options)
        shown = " ".join(f"({'ABCD'[i]}) {text}" for i, text in enumerate(options))
        return f"Whose digest is {digest(gold)}? {shown}", gold, {}

    def draw_listed(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        options = [word(rng) for _ in range(3 + self.seed % 3)]
        gold = rng.choice(options)
        return f"Whose digest is {digest(gold)}? One of: {', '.join(options)}.", gold, {}

    def draw_yes_no(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        n = rng.randint(10**5, 10**9)
        share = 50 + 2 * (self.seed % 10)
        return f"Is the digest of {n} small?", "yes" if digest(n) % 100 < share else "no", {}

    def draw_label(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        text = " ".join(word(rng) for _ in range(rng.randint(3, 30)))
        return f"Label this text: {text}", f"label {digest(text) % 5}", {}

    def draw_count(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        text = "".join(rng.choice("abcdef ") for _ in range(rng.randint(10, 40)))
        return f"How many a's are in {text!r}?", str(text.count("a")), {}

    def draw_needle(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        pairs = {word(rng, 6, 8): word(rng, 4, 10) for _ in range(12)}
        key = rng.choice(sorted(pairs))
        lines = [f"- the {k} is {v}" for k, v in pairs.items()]
        return "\n".join([*lines, f"What is the {key}?"]), pairs[key], {}

    def draw_sorted(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        numbers = [rng.randint(0, 999) for _ in range(rng.randint(4, 8))]
        shown, answer = ", ".join(map(str, numbers)), ", ".join(map(str, sorted(numbers)))
        return f"Sort {shown}.", answer, {}

    def oracle_action(self) -> Any:
        return f"Answer: {self.task.answer}"

    def random_action(self, rng: random.Random) -> Any:
        return f"Answer: {rng.choice(['yes', 'no', 'A', 'B', str(rng.randint(0, 99))])}"

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == f"Answer: {self.task.answer}"


class SoundToolEnv(SoundEnv):
    """The text lies behind a tool call."""

    default_max_turns = 4

    def draw_tool(self, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        shelf, text = rng.randint(0, 10**9), word(rng)
        return f"What lies on shelf {shelf}?", text, {"shelf": shelf}

    @katgym.tool(parallel=True)
    async def look(self, shelf: int) -> str:
        """Look at a shelf.

        Args:
            shelf: Its number.
        """
        return str(self.task.answer) if shelf == self.task.data["shelf"] else "Nothing."

    def oracle_action(self) -> Any:
        if self.num_turns == 0:
            return katgym.assistant("", [("look", {"shelf": self.task.data["shelf"]})])
        return f"Answer: {self.task.answer}"


KINDS = ("sum", "lettered", "inline", "listed", "yes_no", "label", "count", "needle", "sorted")


IN_PROCESSES = ("processes", "robustness")
NUM_WHOLE = 2
"""Seeds of each kind for which the checks run that start processes; these draw nothing."""


def main() -> None:
    """Check all envs and write a row for each."""
    parser = argparse.ArgumentParser(description="Count false alarms of katgym check.")
    parser.add_argument("--seeds", type=int, default=20, help="envs of each kind (20)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    args = parser.parse_args()
    # By its own name, under which other processes import it too.
    own = importlib.import_module("certificate_false_alarms")
    envs = [own.SoundEnv(kind=kind, seed=seed) for seed in range(args.seeds) for kind in KINDS]
    envs += [own.SoundToolEnv(kind="tool", seed=seed) for seed in range(args.seeds)]
    num_flagged = 0
    with args.out.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("kind", "seed", "failed", "skipped", "seconds"))
        for env in envs:
            start = time.monotonic()
            names = [n for n in CHECKS if env.seed < NUM_WHOLE or n not in IN_PROCESSES]
            report = katgym.check_env(env, num_tasks=8, budget_s=10, checks=names)
            failed = " ".join(check.name for check in report.failures)
            skipped = " ".join(c.name for c in report.checks if c.status == "skipped")
            num_flagged += not report.ok
            seconds = round(time.monotonic() - start, 1)
            rows.writerow((env.kind, env.seed, failed, skipped, seconds))
            file.flush()
            for check in report.failures:
                print(env.kind, env.seed, check.name, check.detail, flush=True)
    print(f"{num_flagged} of {len(envs)} sound envs are flagged")


if __name__ == "__main__":
    main()
