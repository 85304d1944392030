"""`katgym`: parses the command line and turns errors into messages and exit codes.

Exit codes: 0 done, 1 the thing failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import katgym
from katgym import console
from katgym.cli.parser import Parser
from katgym.cli.plugin_commands import add_plugin_command, add_subcommands, plugin_commands
from katgym.errors import KatgymError, UsageError
from katgym.system.openmp import settle_openmp

COMMANDS = {
    "envs": "list environments",
    "plugins": "list plugins, with the error of each that was refused",
    "doctor": "show what works on this machine and how to get the rest",
    "play": "play an environment in the terminal",
    "eval": "evaluate a policy; resumes where an earlier run stopped",
    "compare": "compare two runs, paired by task",
    "verify": "verify a run that somebody else made: grade, step and test it again",
    "leaderboard": "rank runs; write Markdown, HTML and Every Eval Ever JSON",
    "view": "read a run: transcripts, or curves and token trees as static HTML",
    "rollouts": "collect rollouts into a store; look at, export and tidy up what it keeps",
    "check": "check that an environment keeps the contract",
    "sandbox": "look at, check and clean up after sandbox backends",
    "gateway": "record every token of any agent, between it and its model server",
    "sandboxd": "serve this machine's sandboxes to others over HTTP",
    "vllm": "start, watch and look at vLLM servers, the policy of `vllm:`",
}
"""Command -> its line of help. Plugins add more."""

PLACES = {
    "environments": ("envs", "plugins", "doctor", "play", "check"),
    "runs": ("eval", "compare", "verify", "leaderboard", "view"),
    "servers": ("sandbox", "gateway", "sandboxd"),
}
"""Folder here -> its commands, modules `<name>_command`; others are a folder of subcommands."""

PASSES_ON = frozenset({"vllm"})
"""Commands of which a subcommand passes what follows -- on to another program: `args.extra`."""

VERBOSE = ("-v", "--verbose")
"""The option that every command has, at any place before `--`."""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of `command` (of all commands for None).

    Plugins are loaded unless `command` is one of katgym's own.
    """
    parser = Parser(prog="katgym", description="Gymnasium for LLM agents.")
    parser.add_argument("--version", action="version", version=f"katgym {katgym.__version__}")
    parser.add_argument(*VERBOSE, action="store_true", help="show katgym's log; at any place")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        is_needed = command is None or command == name
        place = next((f"{p}.{name}_command" for p, names in PLACES.items() if name in names), name)
        module = importlib.import_module(f"katgym.cli.{place}") if is_needed else None
        sub = subparsers.add_parser(
            name, help=summary, description=module.__doc__ if module else None
        )
        if module is not None and hasattr(module, "SUBCOMMANDS"):
            add_subcommands(sub, module.__name__, module.SUBCOMMANDS)
        elif module is not None:
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    if command not in COMMANDS:
        found = plugin_commands(COMMANDS)
        for name, entry in found.items():
            if " " in name:
                continue
            add_plugin_command(
                subparsers,
                entry,
                is_needed=command is None or command == name,
                subcommands={
                    n.removeprefix(f"{name} "): sub
                    for n, sub in found.items()
                    if n.startswith(f"{name} ")
                },
            )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    settle_openmp(os.environ)  # before a command imports torch
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((a for a in arguments if not a.startswith("-")), None)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, rest = arguments[:at], arguments[at:]
    is_verbose = any(text in VERBOSE for text in arguments)
    arguments = [text for text in arguments if text not in VERBOSE]
    extra = rest[1:] if command in PASSES_ON else []
    if not extra:
        arguments += rest
    try:
        args = build_parser(command or "").parse_args(arguments, argparse.Namespace(extra=extra))
    except SystemExit as e:
        return int(e.code or 0)
    except KatgymError as e:
        console.print_error(str(e))
        return 1
    if extra and not getattr(args, "passes_on", False):
        console.print_error(f"this command passes nothing on, got -- {' '.join(extra)}")
        return 2
    console.show_logs(is_verbose=is_verbose)
    # Loading bars of transformers would tear katgym's own live table.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        return int(args.run(args))
    except UsageError as e:
        console.print_error(str(e))
        return 2
    except (KatgymError, NotImplementedError) as e:
        console.print_error(str(e))
        return 1
    except KeyboardInterrupt:
        console.stderr.print("interrupted")
        return 130
    except BrokenPipeError:  # `katgym envs | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
