"""The one module that prints: consoles for results (stdout) and for everything else (stderr).

No text is markup: a description that holds `[/bold]` is shown as it stands; styles are `Text`. A
stream that cannot encode a character shows the nearest in ASCII. In a pipe no line is wrapped,
padded or cut. Not here: tables (`text_table.py`).
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.logging import RichHandler
from rich.rule import Rule
from rich.text import Text

from katgym.environment.messages import Message
from katgym.text_table import TextTable

_ROLE_STYLES = {"system": "dim", "user": "cyan", "tool": "green", "assistant": "bold"}
_UNWRAPPED = 1_000_000
"""Columns where the output is no terminal."""
_RULE_WIDTH = 80
_ASCII = str.maketrans("–—−‘’“”×…▁▂▃▄▅▆▇█", "---''\"\"x~_.:-=+*#")
"""One for one, so that columns stay in line."""


class _Console(Console):
    """Leaves a reader that has gone to `main`, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise  # what is being handled, a BrokenPipeError


def _console(*, is_stderr: bool) -> Console:
    console = _Console(stderr=is_stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNWRAPPED
    return console


stdout = _console(is_stderr=False)
"""Results: tables, paths, text a user may pipe on."""
stderr = _console(is_stderr=True)
"""Progress, warnings, errors."""


def settle_streams() -> None:
    """Let standard output and error show what their encoding lacks in ASCII, instead of failing."""
    codecs.register_error("katgym.ascii", _to_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="katgym.ascii")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def print_json(value: Any) -> None:
    """Print JSON values and records of ours on standard output, unwrapped, for other programs."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=msgspec.to_builtins))


def print_error(message: str) -> None:
    """Print an error for the user, on standard error."""
    stderr.print(Text.assemble(("error:", "bold red"), f" {message}"), soft_wrap=True)


def print_rule(title: str) -> None:
    """Print a title with a line behind it."""
    width = stdout.width if stdout.is_terminal else max(_RULE_WIDTH, len(title) + 4)
    stdout.print(Rule(Text(title), align="left"), width=width)


def print_rows(
    rows: Iterable[Sequence[str | Text]],
    *,
    header: Sequence[str] = (),
    right: Collection[str] = (),
    wrap: Collection[str] = (),
) -> None:
    """Print a `TextTable`."""
    stdout.print(TextTable(header=header, rows=tuple(rows), right=right, wrap=wrap))


def yes_or_no(is_so: bool) -> Text:
    """Return the word that a table shows, in colour."""
    return Text("yes", style="green") if is_so else Text("no", style="yellow")


def print_message(message: Message) -> None:
    """Print a chat message, coloured by role, its tool calls below it."""
    name = message.get("name", message["role"])
    stdout.print(Text(f"{name}: ", style=_ROLE_STYLES[message["role"]]), end="")
    stdout.print(message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        stdout.print(f"  -> {function['name']} {function['arguments']}")


class _LineHandler(logging.Handler):
    """Writes one line a record to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            first, *more = self.format(record).splitlines() or [""]
            is_traced = record.exc_info is not None
            stderr.print("\n".join([first, *more]) if is_traced else " ".join([first, *more]))
        except Exception:
            self.handleError(record)


def show_logs(*, is_verbose: bool = False) -> None:
    """Send katgym's log records to standard error: warnings, or everything when verbose.

    What fails again and again for one reason is told once, unless verbose.
    """
    settle_streams()
    handler: logging.Handler
    if stderr.is_terminal:
        handler = RichHandler(console=stderr, show_path=False, show_time=is_verbose)
    else:
        handler = _LineHandler()
        time = "%(asctime)s " if is_verbose else ""
        handler.setFormatter(logging.Formatter(f"{time}%(levelname)s %(message)s"))
    shown: set[Any] = set()

    def is_new(record: logging.LogRecord) -> bool:
        """Whether nothing with the same `extra={"once": ...}` was shown before."""
        once = getattr(record, "once", None)
        if once is None or is_verbose:
            return True
        has_been = once in shown
        shown.add(once)
        return not has_been

    logger = logging.getLogger("katgym")
    handler.addFilter(is_new)
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if is_verbose else logging.WARNING)
    logger.propagate = False
