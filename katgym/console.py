"""The one module that prints: consoles for results (stdout) and for everything else (stderr)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from katgym.environment.messages import Message

_ROLE_STYLES = {"system": "dim", "user": "cyan", "tool": "green", "assistant": "bold"}
_FILE_WIDTH = 160
"""Columns when the output is no terminal, so that tables in files and pipes are not squeezed."""


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _FILE_WIDTH
    return Console(stderr=stderr, highlight=False, width=width)


stdout = _console(stderr=False)
"""Results: tables, paths, text a user may pipe on."""
stderr = _console(stderr=True)
"""Progress, warnings, errors."""


def print_json(value: Any) -> None:
    """Print JSON values and records of ours on standard output, unwrapped, for other programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=msgspec.to_builtins))


def print_error(message: str) -> None:
    """Print an error for the user, on standard error."""
    stderr.print(f"[bold red]error:[/] {_escape(message)}", soft_wrap=True)


def print_rows(
    rows: Iterable[Sequence[str | Text]],
    *,
    header: Sequence[str] = (),
    right: Collection[str] = (),
) -> None:
    """Print a table without lines; a `str` is no markup.

    header: names of the columns, in bold. right: the columns that hold numbers.
    """
    table = Table(box=None, pad_edge=False, show_header=bool(header), header_style="bold")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if name in right else "left", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    stdout.print(table)


def yes_or_no(is_so: bool) -> Text:
    """Return the word that a table shows, in colour."""
    return Text("yes", style="green") if is_so else Text("no", style="yellow")


def print_message(message: Message) -> None:
    """Print a chat message, coloured by role, its tool calls below it."""
    style = _ROLE_STYLES[message["role"]]
    stdout.print(f"[{style}]{_escape(message.get('name', message['role']))}:[/] ", end="")
    stdout.print(message["content"], markup=False)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        stdout.print(f"  -> {function['name']} {function['arguments']}", markup=False)


def show_logs(*, is_verbose: bool = False) -> None:
    """Send katgym's log records to standard error: warnings, or everything when verbose."""
    handler = RichHandler(console=stderr, show_path=False, show_time=is_verbose, markup=False)
    logger = logging.getLogger("katgym")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if is_verbose else logging.WARNING)
    logger.propagate = False


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
