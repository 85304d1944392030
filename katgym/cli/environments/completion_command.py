"""Print a script that completes katgym's commands and options in a shell.

It knows the commands of the plugins that are installed; write it again after installing another.
Needs pip install 'katgym[completion]'.

example:
  katgym completion bash > ~/.local/share/bash-completion/completions/katgym
  katgym completion zsh > ~/.zfunc/_katgym    # with fpath+=~/.zfunc before compinit in ~/.zshrc
  katgym completion fish > ~/.config/fish/completions/katgym.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from katgym import console
from katgym.errors import MissingDependencyError

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from katgym.cli.main import build_parser  # which imports this module

    try:
        import shtab
    except ImportError as e:
        raise MissingDependencyError(
            f"completion needs {e.name!r}. Install: pip install 'katgym[completion]'"
        ) from e
    parser = build_parser()
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # what shtab reads
    console.stdout.out(shtab.complete(parser, shell=args.shell), highlight=False)
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command and of all below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
