"""The argument parser of all commands: no abbreviations, nearest names, help for no command.

Not here: which commands and options there are (`main.py`, `options.py`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from katgym import console
from katgym.errors import unknown_name


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names only, and names the nearest of one that is not known."""

    def __init__(self, *args: Any, **more: Any) -> None:
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **{**more, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Print the usage, or the commands where one is missing, and what is wrong; exit code 2."""
        if "are required" in message and any(self._find_subparsers()):
            self.print_help(sys.stderr)
        else:
            self.print_usage(sys.stderr)
        console.print_error(message)
        raise SystemExit(2)

    def _find_subparsers(self) -> list[argparse.Action]:
        return [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for its Namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; an unknown option is an error before one that is missing.

        Without the command that has to follow, print all there are. What is left over is told with
        the usage of the command that does not take it.
        """
        given = list(sys.argv[1:] if args is None else args)
        if not given and any(action.required for action in self._find_subparsers()):
            self.print_help(sys.stderr)
            raise SystemExit(2)
        known = self._option_string_actions
        longs = [o for o in known if o.startswith("--") and o != "--help"]
        is_last = self._subparsers is None and "-" in self.prefix_chars
        for text in itertools.takewhile(lambda text: text != "--", given if is_last else ()):
            name = text.partition("=")[0]
            # With a space in it, it is the value of an option.
            if name.startswith("--") and " " not in name and name not in known:
                self.error(unknown_name(f"option of {self.prog}", name, longs))
        found, left_over = super().parse_known_args(given, namespace)
        if left_over and is_last:
            self.error(f"{self.prog} takes no {' '.join(map(repr, left_over))}")
        return found, left_over

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if isinstance(action, argparse._SubParsersAction):
                self.error(unknown_name(f"command of {self.prog}", value, action.choices))
            names = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, unknown_name("choice", value, names))
