"""The long check: SmolLM2-135M learns arithmetic by adapters, sampled by a real vLLM server.

    katgym vllm install --device cpu    # or gpu, once a machine
    python benchmarks/nightly.py

Imitation of the env's solutions, then a few steps of reinforcement with sampling and training at
the same time. It fails if a rollout had no valid reward, if tokens were older than the bound, or if
server and trainer disagree about what was sampled. One that was stopped goes on; one that ended
begins anew. Not here: a model that learns something to look at (`katgym demo train`).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from katgym.cli.main import main
from katgym.console import stdout

CONFIG = Path(__file__).parent / "nightly.toml"
RUN = Path("runs/nightly")
MAX_DIFFERENCE = 1e-3
"""Most that log-probs of server and trainer may differ after a sync."""


def run() -> int:
    """Train, then check what was measured; return the exit code."""
    if (RUN / "model").exists():  # it ended: its figures say nothing of what is here now
        shutil.rmtree(RUN)
    code = main(["train", "rl", str(CONFIG), "--out", str(RUN)])
    if code:
        return code
    lines = [json.loads(x) for x in (RUN / "02-rl" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        stdout.print({name: line.get(name) for name in sorted(SHOWN)})
    wrong = [told for line in lines for told in _mistakes(line)]
    for told in wrong:
        stdout.print(f"error: {told}")
    return int(bool(wrong))


SHOWN = {
    "step", "rollout/success", "rollout/num_invalid", "rollout/max_staleness", "train/policy_kl",
    "sync/difference", "time/sync_s", "time/total_s", "rate/sampled_tokens_per_s",
}  # fmt: skip


def _mistakes(line: dict[str, float]) -> list[str]:
    step = f"step {line['step']}"
    told = []
    if line["rollout/num_invalid"]:
        told.append(f"{step}: {line['rollout/num_invalid']:.0f} rollouts without a valid reward")
    if line["rollout/max_staleness"] > 1:
        told.append(f"{step}: tokens {line['rollout/max_staleness']:.0f} steps old")
    if not line["sync/difference"] < MAX_DIFFERENCE:
        told.append(f"{step}: after the sync log-probs differ by {line['sync/difference']:g}")
    return told


if __name__ == "__main__":
    sys.exit(run())
