"""`katgym`: parses the command line and turns errors into messages and exit codes.

Exit codes: 0 done, 1 the thing failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence

import katgym
from katgym import console
from katgym.cli.parser import Parser
from katgym.cli.plugin_commands import add_plugin_command, add_subcommands, plugin_commands
from katgym.errors import KatgymError, UsageError
from katgym.system.openmp import settle_openmp

logger = logging.getLogger(__name__)

COMMANDS = {
    "new": "begin an environment, a plugin or a training run: files that run",
    "envs": "list environments",
    "plugins": "list plugins, with the error of each that was refused; search for more",
    "doctor": "show what works on this machine and how to get the rest",
    "completion": "print a script that completes commands in a shell",
    "play": "play an environment in the terminal",
    "eval": "evaluate a policy; resumes where an earlier run stopped",
    "runs": "list runs: how far they are, what came of them",
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
    "environments": ("new", "envs", "plugins", "doctor", "completion", "play", "check"),
    "runs": ("eval", "runs", "compare", "verify", "leaderboard", "view"),
    "servers": ("sandbox", "gateway", "sandboxd"),
}
"""Folder here -> its commands, modules `<name>_command`; others are a folder of subcommands."""

PASSES_ON = frozenset({"vllm"})
"""Commands of which a subcommand passes what follows -- on to another program: `args.extra`."""

DESCRIPTION = """Gymnasium for LLM agents.

example:
  katgym doctor
  katgym envs
  katgym play katgym/Arithmetic-v1
  katgym eval katgym/Arithmetic-v1 --policy oracle --tasks 20 --out runs/oracle
  katgym view runs/oracle --html
  katgym new env riddles"""

VERBOSE = ("-v", "--verbose")
"""The option that every command has, at any place before `--`."""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of `command` (of all commands for None).

    Plugins are loaded unless `command` is one of katgym's own.
    """
    parser = Parser(prog="katgym", description=DESCRIPTION)
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
    console.settle_streams()
    settle_openmp(os.environ)  # before a command imports torch
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except UsageError as e:
        console.print_error(str(e))
        return 2
    except (KatgymError, NotImplementedError) as e:
        console.print_error(str(e))
        return 1
    except KeyboardInterrupt:
        console.stderr.print("interrupted")
        return 130
    except ModuleNotFoundError as e:
        if (e.name or "katgym").startswith("katgym"):
            raise
        logger.debug("%s", e, exc_info=True)
        console.print_error(
            f"this command needs {e.name!r}, which is not installed; `katgym doctor` shows how to"
            " install what is missing"
        )
        return 1
    except (OSError, UnicodeError) as e:
        if isinstance(e, BrokenPipeError) and _has_lost_reader():
            _leave_stdout()  # `katgym envs | head`: the reader has what it wanted
            return 0
        logger.debug("%s", e, exc_info=True)
        console.print_error(_describe_fault(e))
        try:
            sys.stdout.flush()
        except OSError:
            _leave_stdout()
        return 1


def _run(arguments: list[str]) -> int:
    command = next((a for a in arguments if not a.startswith("-")), None)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, rest = arguments[:at], arguments[at:]
    is_verbose = any(text in VERBOSE for text in arguments)
    arguments = [text for text in arguments if text not in VERBOSE]
    extra = rest[1:] if command in PASSES_ON else []
    if not extra:
        arguments += rest
    console.show_logs(is_verbose=is_verbose)
    try:
        args = build_parser(command or "").parse_args(arguments, argparse.Namespace(extra=extra))
    except SystemExit as e:
        return int(e.code or 0)
    if extra and not getattr(args, "passes_on", False):
        raise UsageError(f"this command passes nothing on, got -- {' '.join(extra)}")
    # Loading bars of transformers would tear katgym's own live table.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return int(args.run(args))


def _describe_fault(error: OSError | UnicodeError) -> str:
    """Say what of the machine failed a command; the log has the traceback (`--verbose`)."""
    if isinstance(error, UnicodeError):
        return f"what was read is not text in UTF-8: {error}"
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return reason
    return f"cannot use {os.fsdecode(error.filename)!r}: {reason}"


def _has_lost_reader() -> bool:
    """Return whether nobody reads standard output any more, as far as a system can tell."""
    if not hasattr(select, "poll"):  # Windows
        return True
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file
        return False
    return any(event & select.POLLERR for _, event in watch.poll(0))


def _leave_stdout() -> None:
    """Let what is still to be written to standard output go nowhere, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
