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
from katgym.cli.plugin_commands import add_plugin_command, plugin_commands
from katgym.errors import KatgymError, UsageError, unknown_name

COMMANDS = {
    "envs": "list environments",
    "plugins": "list plugins, with the error of each that was refused",
    "doctor": "show what works on this machine and how to get the rest",
    "play": "play an environment in the terminal",
    "eval": "evaluate a policy; resumes where an earlier run stopped",
    "compare": "compare two runs, paired by task",
    "leaderboard": "rank runs; write Markdown, HTML and Every Eval Ever JSON",
    "view": "read a run: transcripts, or curves and token trees as static HTML",
    "rollouts": "collect rollouts into a store; look at, export and tidy up what it keeps",
    "check": "check that an environment keeps the contract",
    "sandbox": "look at, check and clean up after sandbox backends",
    "gateway": "record every token of any agent, between it and its model server",
    "sandboxd": "serve this machine's sandboxes to others over HTTP",
    "vllm": "start, watch and look at vLLM servers, the policy of `vllm:`",
}
"""Subcommand -> its line of help, with a module `katgym.cli.<name>_command`.

Plugins add more."""

PASSES_ON = frozenset({"vllm"})
"""Commands of which a subcommand passes what follows -- on to another program: `args.extra`."""


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest command for a misspelled one."""

    def error(self, message: str) -> None:  # type: ignore[override]  # exits, as argparse's does
        self.print_usage(sys.stderr)
        console.print_error(message)
        raise SystemExit(2)


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of `command` (of all commands for None).

    Plugins are loaded unless `command` is one of katgym's own.
    """
    parser = _Parser(prog="katgym", description="Gymnasium for LLM agents.")
    parser.add_argument("--version", action="version", version=f"katgym {katgym.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        is_needed = command is None or command == name
        module = importlib.import_module(f"katgym.cli.{name}_command") if is_needed else None
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=module.__doc__ if module else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("-v", "--verbose", action="store_true", help="show katgym's log")
        if module is not None:
            module.add_arguments(sub)
            if hasattr(module, "run"):  # a command of subcommands has none of its own
                sub.set_defaults(run=module.run)
    if command not in COMMANDS:
        for name, entry in plugin_commands(COMMANDS).items():
            add_plugin_command(subparsers, entry, is_needed=command is None or command == name)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((a for a in arguments if not a.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        known = {*COMMANDS, *plugin_commands(COMMANDS)}
        if command not in known:
            console.print_error(unknown_name("command", command, known))
            return 2
    extra: list[str] = []
    if command in PASSES_ON and "--" in arguments:
        at = arguments.index("--")
        arguments, extra = arguments[:at], arguments[at + 1 :]
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
    console.show_logs(is_verbose=args.verbose)
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
