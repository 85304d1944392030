"""The toy task in katgym: one configuration per process, one JSON line on standard output.

python toy_task.py --concurrency 64 --episodes 1000
python toy_task.py --concurrency 512 --probe memory
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import katgym
from katgym.environment.messages import Message
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.policies.base import Completion, EpisodeContext, Policy, Session, TokenRecord

TOOL_TURNS = 3
PROMPT_TOKENS = 48  # new prompt tokens a turn, recorded like a real policy's
COMPLETION_TOKENS = 32


class AddEnv(katgym.Env):
    """Add numbers with a tool, three turns of two calls."""

    def load_tasks(self, split: str) -> katgym.TaskSet:
        return katgym.ProceduralTaskSet(
            lambda rng, index: katgym.Task(
                task_id="",
                prompt=f"seed={index}",
                answer=str(sum(2 * (index + turn) + 3 for turn in range(TOOL_TURNS))),
            ),
            size=1_000_000,
            split=split,
        )

    @katgym.tool(parallel=True)
    async def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: First number.
            b: Second number.
        """
        return a + b

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the answer is the sum of all results."""
        return self.final_answer == self.task.answer


class ZeroLatencyPolicy(Policy):
    """Answers at once, with token ids and log-probabilities of realistic number."""

    name = "zero-latency"
    records_tokens = True

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.gate = gate
        self.num_waiting = 0

    def start(self, context: EpisodeContext) -> Session:
        return _Session(self)


class _Session(Session):
    def __init__(self, policy: ZeroLatencyPolicy) -> None:
        self._policy = policy
        self._turn = 0
        self._num_tokens = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        turn = self._turn
        seed = int(messages[0]["content"].removeprefix("seed="))
        if turn < TOOL_TURNS:
            calls = [("add", {"a": seed + turn, "b": k}) for k in (1, 2)]
            message = katgym.assistant("", calls, prefix=f"call_{turn}")
        else:
            if self._policy.gate is not None:
                self._policy.num_waiting += 1
                await self._policy.gate.wait()
            total = sum(int(m["content"]) for m in messages if m["role"] == "tool")
            message = katgym.assistant(str(total))
        record = TokenRecord(
            parent=turn - 1 if turn else None,
            num_shared=self._num_tokens,
            prompt_ids=list(range(PROMPT_TOKENS)),
            completion_ids=list(range(COMPLETION_TOKENS)),
            policy_logprobs=[-0.5] * COMPLETION_TOKENS,
        )
        self._num_tokens += PROMPT_TOKENS + COMPLETION_TOKENS
        self._turn += 1
        return Completion(
            message=message,
            tokens=record,
            num_prompt_tokens=self._num_tokens - COMPLETION_TOKENS,
            num_completion_tokens=COMPLETION_TOKENS,
        )


def resident_kib() -> int:
    """Return the process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS in /proc/self/status")


async def measure(concurrency: int, episodes: int, probe: str) -> dict[str, object]:
    """Play the episodes and return the row."""
    gate = asyncio.Event() if probe == "memory" else None
    policy = ZeroLatencyPolicy(gate)
    template = AddEnv()
    engine = RolloutEngine(policy, config=EngineConfig(max_concurrency=concurrency))
    requests = (RolloutRequest(env=template, seed=i) for i in range(episodes))
    held = 0
    before = resident_kib()

    async def watch() -> None:
        nonlocal held
        while policy.num_waiting < episodes:
            await asyncio.sleep(0.05)
        held = resident_kib()
        assert gate is not None
        gate.set()

    watcher = asyncio.create_task(watch()) if gate is not None else None
    num_turns = num_right = 0
    began = time.perf_counter()
    async for _, rollout in engine.run(requests):
        num_turns += rollout.num_turns
        num_right += rollout.reward.value == 1.0
    wall = time.perf_counter() - began
    if watcher is not None:
        await watcher
    assert num_right == episodes, f"{episodes - num_right} of {episodes} rewards are wrong"
    return {
        "library": "katgym",
        "version": katgym.__version__,
        "concurrency": concurrency,
        "episodes": episodes,
        "turns": num_turns,
        "us_per_turn": wall / num_turns * 1e6,
        "episodes_per_s": episodes / wall,
        "kib_per_live_episode": (held - before) / episodes if held else None,
    }


def main() -> None:
    """Parse the command line, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--probe", choices=["none", "memory"], default="none")
    args = parser.parse_args()
    asyncio.run(measure(2, 4, "none"))
    episodes = args.concurrency if args.probe == "memory" else max(args.episodes, args.concurrency)
    print(json.dumps(asyncio.run(measure(args.concurrency, episodes, args.probe))))


if __name__ == "__main__":
    main()
