"""Play an environment yourself.

What you type is your message. `/tool NAME {"argument": value}` calls a tool; several such lines in
one turn are sent together with a last line `/send`. `/oracle` shows the gold action, `/quit` ends.

example:
  katgym play 'katgym/TreasureHunt-v1?level=2'
  katgym play katgym/Chess-v1 --seed 7
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.env import Env
from katgym.environment.messages import Action, assistant, normalize_action
from katgym.errors import UsageError
from katgym.evaluation.plan import parse_env
from katgym.plugins import registry

KEYS = "type a message, or: /tool NAME {json} ... then /send; /oracle shows a solution; /quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", metavar="ENV", help="id, with ?name=value&... if needed")
    add_option(parser, "seed", "draws the task and the episode")
    add_option(parser, "task", "play this one")
    add_option(parser, "split", "(train)", default="train")


def run(args: argparse.Namespace) -> int:
    """Play one episode; 1 when it was left before its end."""
    env_id, kwargs = parse_env(args.env)
    env = registry.make(env_id, **kwargs)
    options: dict[str, Any] = {"split": args.split}
    if args.task:
        options["task_id"] = args.task
    try:
        observation, info = env.reset(seed=args.seed, options=options)
        console.stdout.print(f"[dim]task {info['task_id']}, {env.max_turns} turns at most[/]")
        for tool in env.tools.values():
            properties = tool.parameters.get("properties", {})
            arguments = ", ".join(f"{k}: {v.get('type', 'any')}" for k, v in properties.items())
            mark = " (parallel)" if tool.is_parallel else ""
            console.stdout.print(f"  [green]{tool.name}[/]({arguments}){mark}: {tool.description}")
        console.stdout.print(f"[dim]{KEYS}[/]\n")
        while True:
            if len(env.seats) > 1:
                console.stdout.print(f"[dim]{env.seat} to move[/]")
            for message in observation:
                console.print_message(message)
            action = _read_action(env)
            if action is None:
                console.stdout.print("left before the end")
                return 1
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
        for message in observation:
            console.print_message(message)
        for seat, reward in env.seat_rewards().items():
            label = f" of {seat}" if len(env.seats) > 1 else ""
            value = "invalid" if reward.value is None else f"{reward.value:g}"
            console.stdout.print(f"\n[bold]reward{label}: {value}[/] ({env.end_reason})")
            for name, part in reward.components.items():
                console.stdout.print(f"  {name}: {part.score:g} (weight {part.weight:g})")
        return 0
    finally:
        env.close()


def _read_action(env: Env) -> Action | None:
    """Read one action; None at the end of input or on /quit."""
    calls: list[tuple[str, dict[str, Any]]] = []
    while True:
        if sys.stdin.isatty():
            console.stdout.print("[bold]> [/]", end="")
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return None
        text = line.rstrip("\n")
        if text.strip() == "/oracle":
            action = normalize_action(env.oracle_action())
            if action["content"]:
                console.stdout.print(f"  {action['content']}", markup=False)
            for call in action.get("tool_calls", ()):
                function = call["function"]
                console.stdout.print(
                    f"  /tool {function['name']} {function['arguments']}", markup=False
                )
        elif text.strip() == "/send":
            if calls:
                return assistant("", calls)
            console.print_error('nothing to send; call a tool first: /tool NAME {"a": 1}')
        elif text.startswith("/tool"):
            try:
                calls.append(_parse_call(text))
            except UsageError as e:
                console.print_error(str(e))
        else:
            return text


def _parse_call(line: str) -> tuple[str, dict[str, Any]]:
    parts = line.split(maxsplit=2)
    if len(parts) < 2:
        raise UsageError('a tool call has the form /tool NAME {"argument": value}')
    try:
        arguments = json.loads(parts[2]) if len(parts) == 3 else {}
    except ValueError as e:
        raise UsageError(f"the arguments are not valid JSON: {e}") from e
    if not isinstance(arguments, dict):
        raise UsageError(f"the arguments are a JSON object, got {parts[2]!r}")
    return parts[1], arguments
