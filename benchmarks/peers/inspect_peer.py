"""The toy task in Inspect (`pip install inspect-ai openai`), its own loop and `mockllm/model`.

Logging is as lean as Inspect's options allow, which is its fastest.

    python inspect_peer.py --concurrency 64 --episodes 200
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolCall, tool

TOOL_TURNS = 3


@tool(parallel=True)
def add():
    async def execute(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: First number.
            b: Second number.
        """
        return a + b

    return execute


class Script:
    """The scripted model; counts its calls and, with a barrier, notes memory at the last turn."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_waiting = 0
        self.barrier = 0
        self.held_kib = 0
        self.gate = None

    async def __call__(self, input, tools, tool_choice, config):
        self.num_calls += 1
        seed = int(next(m for m in input if m.role == "user").text.removeprefix("seed="))
        turn = sum(m.role == "assistant" for m in input)
        if turn < TOOL_TURNS:
            calls = [
                ToolCall(id=f"c{turn}-{k}", function="add", arguments={"a": seed + turn, "b": k})
                for k in (1, 2)
            ]
            return _output("", calls, "tool_calls")
        if self.barrier:
            await self._wait()
        total = sum(int(m.text) for m in input if m.role == "tool")
        return _output(str(total), None, "stop")

    async def _wait(self) -> None:
        import asyncio

        self.gate = self.gate or asyncio.Event()
        self.num_waiting += 1
        if self.num_waiting == self.barrier:
            self.held_kib = resident_kib()
            self.gate.set()
        await self.gate.wait()


def _output(text, calls, stop):
    message = ChatMessageAssistant(content=text, source="generate", tool_calls=calls)
    return ModelOutput(
        model="mockllm/model",
        usage=ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2),
        choices=[ChatCompletionChoice(stop_reason=stop, message=message)],
    )


def resident_kib() -> int:
    """Return the process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def play(script: Script, episodes: int, concurrency: int) -> float:
    """Run one eval and return its wall seconds; every answer has to be right."""
    samples = [
        Sample(input=f"seed={i}", target=str(sum(2 * (i + t) + 3 for t in range(TOOL_TURNS))), id=i)
        for i in range(episodes)
    ]
    task = Task(
        dataset=MemoryDataset(samples),
        solver=[use_tools(add()), generate()],
        scorer=match(location="exact"),
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        (log,) = inspect_eval(
            task,
            model=get_model("mockllm/model", custom_outputs=script, memoize=False),
            max_samples=concurrency,
            max_connections=concurrency,
            log_dir=folder,
            display="none",
            log_level="error",
            log_samples=False,
            log_realtime=False,
            log_model_api=False,
        )
        wall = time.perf_counter() - began
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    return wall


def main() -> None:
    """Parse the command line, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--probe", choices=["none", "memory"], default="none")
    args = parser.parse_args()
    play(Script(), 2, 1)
    script = Script()
    episodes = args.concurrency if args.probe == "memory" else max(args.episodes, args.concurrency)
    script.barrier = episodes if args.probe == "memory" else 0
    before = resident_kib()
    wall = play(script, episodes, args.concurrency)
    held = (script.held_kib - before) / episodes if script.held_kib else None
    row = {
        "library": "inspect-ai",
        "version": version("inspect-ai"),
        "concurrency": args.concurrency,
        "episodes": episodes,
        "turns": script.num_calls,
        "us_per_turn": wall / script.num_calls * 1e6,
        "episodes_per_s": episodes / wall,
        "kib_per_live_episode": held,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
