"""The demo: a small language model plays four environments, beside oracle, random and noop.

Everything is real: SmolLM2-135M-Instruct samples every token, rewards are verified, and its scores
are shown as they are. A second run continues where the first stopped.

    python demo/demo.py            # a few minutes on two cores
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from katgym.cli.main import main
from katgym.console import stdout

ENVS = (
    "katgym/Arithmetic-v1?level=1",
    "katgym/MathProblems-v1",
    "katgym/TreasureHunt-v1?level=1",
)
REPAIR = "katgym/SWE-v0?tasks=toy"
"""Five repairs of the toy repository: real sandboxes, hidden tests, canaries; no network."""
RUNS = Path("runs/demo")
POLICIES = ("oracle", "random", "noop", "smollm2")


def run() -> int:
    """Evaluate each policy, then build the leaderboard."""
    began = time.perf_counter()
    for policy in POLICIES:
        stdout.rule(f"katgym eval ... --policy {policy}", align="left")
        command = ["eval", *ENVS, "--policy", policy, "--tasks", "12", "--out", str(RUNS / policy)]
        command += ["--max-tokens", "160", "--temperature", "0.7", "--concurrency", "12"]
        code = main(command)
        if code:
            return code
        command = ["eval", REPAIR, "--policy", policy, "--tasks", "5", "--concurrency", "5"]
        command += ["--out", str(RUNS / f"{policy}-repair"), "--set", "limits.max_turns=4"]
        code = main([*command, "--max-tokens", "160", "--temperature", "0.7"])
        if code:
            return code
    stdout.rule("katgym leaderboard", align="left")
    folders = [str(RUNS / f"{policy}{end}") for policy in POLICIES for end in ("", "-repair")]
    code = main(["leaderboard", *folders, "--out", str(RUNS / "leaderboard")])
    stdout.print(f"\n{time.perf_counter() - began:.0f} s. Transcripts: katgym view {RUNS}/smollm2")
    return code


if __name__ == "__main__":
    sys.exit(run())
