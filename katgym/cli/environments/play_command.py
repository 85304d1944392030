"""Play an environment yourself.

What you type is your message. `/tool NAME {"argument": value}` calls a tool; several such lines in
one turn are sent together with a last line `/send`. `/oracle` shows the gold action, `/help` what
can be typed, `/quit` ends. A message that begins with a slash is written with two: `//bin`.

example:
  katgym play 'katgym/TreasureHunt-v1?level=2'
  katgym play katgym/Chess-v1 --seed 7
  katgym play my_env.py:MyEnv
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.env import Env
from katgym.environment.messages import Action, assistant, normalize_action
from katgym.errors import UsageError, unknown_name
from katgym.evaluation.plan import parse_env
from katgym.plugins import registry

COMMANDS = {
    "/tool": '/tool NAME {"argument": value} calls a tool; several may follow each other',
    "/send": "/send ends the turn with the calls before it",
    "/oracle": "/oracle shows a solution's next action",
    "/help": "/help shows this, and costs no turn",
    "/quit": "/quit leaves",
}
"""What may be typed instead of a message -> what it does."""
KEYS = "type a message, or: /tool NAME {json} ... then /send; /oracle, /help, /quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", metavar="ENV", help="id or FILE.py:CLASS, with ?name=value&...")
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
        _print_dim(f"task {info['task_id']}, {env.max_turns} turns at most")
        for tool in env.tools.values():
            properties = tool.parameters.get("properties", {})
            arguments = ", ".join(f"{k}: {v.get('type', 'any')}" for k, v in properties.items())
            mark = " (parallel)" if tool.parallel else ""
            title = Text(f"  {tool.name}", style="green")
            console.stdout.print(title + Text(f"({arguments}){mark}: {tool.description}"))
        _print_dim(f"{KEYS}\n")
        while True:
            if len(env.seats) > 1:
                _print_dim(f"{env.seat} to move")
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
            told = Text(f"\nreward{label}: {value}", style="bold")
            console.stdout.print(told + Text(f" ({env.end_reason})"))
            for name, part in reward.components.items():
                console.stdout.print(f"  {name}: {part.score:g} (weight {part.weight:g})")
        return 0
    finally:
        env.close()


def _print_dim(text: str) -> None:
    console.stdout.print(Text(text, style="dim"))


def _read_action(env: Env) -> Action | None:
    """Read one action; None at the end of input or on /quit."""
    calls: list[tuple[str, dict[str, Any]]] = []
    while True:
        if sys.stdin.isatty():
            console.stdout.print(Text("> ", style="bold"), end="")
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return None
        text = line.rstrip("\n")
        command = text.strip().partition(" ")[0]
        if text.startswith("//"):
            return text[1:]
        if command.startswith("/") and command not in COMMANDS:
            hint = f"A message that begins with / is written /{command} ..."
            console.print_error(unknown_name("command", command, COMMANDS, hint=hint))
        elif command == "/help":
            console.stdout.print("\n".join(f"  {told}" for told in COMMANDS.values()))
        elif text.strip() == "/oracle":
            action = normalize_action(env.oracle_action())
            if action["content"]:
                console.stdout.print(f"  {action['content']}")
            for call in action.get("tool_calls", ()):
                function = call["function"]
                console.stdout.print(f"  /tool {function['name']} {function['arguments']}")
        elif text.strip() == "/send":
            if calls:
                return assistant("", calls)
            console.print_error('nothing to send; call a tool first: /tool NAME {"a": 1}')
        elif command == "/tool":
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
