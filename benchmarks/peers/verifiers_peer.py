"""The toy task in verifiers (`pip install verifiers aiohttp`), a harness in process.

Of the ways verifiers offers, this is the fastest that keeps its design: every rollout goes through
its interception server to a model endpoint, which is a scripted HTTP server in another process.

    python verifiers_peer.py --concurrency 64 --episodes 200
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import aiohttp
from aiohttp import web

TOOL_TURNS = 3
__all__ = ["AddHarness", "AddTaskset"]


def answer_of(seed: int) -> str:
    return str(sum(2 * (seed + turn) + 3 for turn in range(TOOL_TURNS)))


# ---- the scripted model, a server of its own


async def _complete(request: web.Request) -> web.Response:
    state = request.app["state"]
    messages = (await request.json())["messages"]
    state["calls"] += 1
    text = next(m for m in messages if m["role"] == "user")["content"]
    text = text if isinstance(text, str) else "".join(part["text"] for part in text)
    seed = int(text.removeprefix("seed="))
    turn = sum(m["role"] == "assistant" for m in messages)
    if turn < TOOL_TURNS:
        calls = [
            {
                "id": f"c{turn}-{k}",
                "type": "function",
                "function": {"name": "add", "arguments": json.dumps({"a": seed + turn, "b": k})},
            }
            for k in (1, 2)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    else:
        state["waiting"] += 1
        if state["is_gated"]:
            await state["gate"].wait()
        total = sum(int(m["content"]) for m in messages if m["role"] == "tool")
        message = {"role": "assistant", "content": str(total)}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return web.json_response(
        {
            "id": "r",
            "object": "chat.completion",
            "created": 1,
            "model": "script",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


async def _control(request: web.Request) -> web.Response:
    state = request.app["state"]
    command = request.match_info["command"]
    if command == "reset":
        state.update(calls=0, waiting=0, is_gated=request.query.get("gate") == "1")
        state["gate"].clear()
    elif command == "release":
        state["gate"].set()
    return web.json_response({"calls": state["calls"], "waiting": state["waiting"]})


async def serve() -> None:
    """Serve the model on a free port and print it."""
    app = web.Application(client_max_size=1 << 28)
    app["state"] = {"calls": 0, "waiting": 0, "is_gated": False, "gate": asyncio.Event()}
    app.add_routes(
        [web.post("/v1/chat/completions", _complete), web.post("/control/{command}", _control)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


# ---- the task and the harness, as verifiers wants them

if "--serve" not in sys.argv:
    import verifiers.v1 as vf

    class AddData(vf.TaskData):
        answer: str

    class AddTask(vf.Task[AddData]):
        @vf.reward(weight=1.0)
        async def correct(self, trace: vf.Trace) -> float:
            return float(trace.last_reply.strip() == self.data.answer)

    class AddConfig(vf.TasksetConfig):
        n: int = 1

    class AddTaskset(vf.Taskset[AddTask, AddConfig]):
        def load(self):
            return [
                AddTask(AddData(prompt=f"seed={i}", answer=answer_of(i)), self.config.task)
                for i in range(self.config.n)
            ]

    class AddHarness(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False
        http = None

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
            _, prompt = self.resolve_prompt(data)
            if AddHarness.http is None:
                connector = aiohttp.TCPConnector(limit=0)
                AddHarness.http = aiohttp.ClientSession(connector=connector)
            messages = [{"role": "user", "content": prompt}]
            while True:
                async with AddHarness.http.post(
                    f"{endpoint}/chat/completions",
                    headers={"Authorization": f"Bearer {secret}"},
                    json={"model": "script", "messages": messages, "tools": TOOLS},
                ) as response:
                    response.raise_for_status()
                    message = (await response.json())["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                messages += await asyncio.gather(*map(run_tool, message["tool_calls"]))


async def add(a: int, b: int) -> int:
    return a + b


async def run_tool(call):
    arguments = json.loads(call["function"]["arguments"])
    result = await add(arguments["a"], arguments["b"])
    return {"role": "tool", "tool_call_id": call["id"], "content": str(result)}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


def proportional_kib(pids) -> int:
    """Return the proportional memory of some processes together."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def load(url: str, episodes: int) -> tuple[object, object]:
    """Return the environment, and the model behind `url`."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    name = Path(__file__).stem
    config = resolve_env_config(
        {
            "taskset": {"id": name, "n": episodes},
            "agent": {"harness": {"id": name}, "runtime": {"type": "subprocess"}},
        }
    )
    client = EvalClientConfig(base_url=f"{url}/v1", api_key_var="SCRIPT_KEY")
    return load_environment(config), ModelContext(client=client, model="script")


async def measure(args: argparse.Namespace, url: str) -> dict[str, object]:
    """Play the episodes and return the row."""
    is_memory = args.probe == "memory"
    episodes = args.concurrency if is_memory else max(args.episodes, args.concurrency)
    env, context = load(url, episodes)
    limit = asyncio.Semaphore(args.concurrency)
    held = 0

    async def ignore(_):
        return None

    async def play(task):
        (slot,) = env.slots(task, 1)
        return await env.run_slot(slot, context, limit, ignore)

    async with aiohttp.ClientSession() as control, env.serving():
        tasks = list(env.taskset)
        for task in tasks[:2]:
            await play(task)
        await control.post(f"{url}/control/reset", params={"gate": str(int(is_memory))})
        before = proportional_kib([os.getpid()])

        async def watch():
            nonlocal held
            while True:
                async with control.post(f"{url}/control/state") as response:
                    if (await response.json())["waiting"] >= episodes:
                        break
                await asyncio.sleep(0.05)
            held = proportional_kib([os.getpid()])
            await control.post(f"{url}/control/release")

        watcher = asyncio.create_task(watch()) if is_memory else None
        began = time.perf_counter()
        played = await asyncio.gather(*map(play, tasks))
        wall = time.perf_counter() - began
        if watcher:
            await watcher
        async with control.post(f"{url}/control/state") as response:
            turns = (await response.json())["calls"]
        await AddHarness.http.close()
    assert all(trace.reward == 1.0 for episode in played for trace in episode.traces)
    return {
        "library": "verifiers",
        "version": version("verifiers"),
        "concurrency": args.concurrency,
        "episodes": episodes,
        "turns": turns,
        "us_per_turn": wall / turns * 1e6,
        "episodes_per_s": episodes / wall,
        "kib_per_live_episode": (held - before) / episodes if held else None,
    }


def main() -> None:
    """Parse the command line, start the model's server, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--probe", choices=["none", "memory"], default="none")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    os.environ["SCRIPT_KEY"] = "x"
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        print(json.dumps(asyncio.run(measure(args, url))))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    else:  # as the importable module, so that the plug-in classes exist once
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        importlib.import_module(Path(__file__).stem).main()
