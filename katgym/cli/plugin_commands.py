"""Subcommands that plugins add to `katgym` by hook `katgym_register_commands`.

Not here: katgym's own (`main.py`); the hook (`katgym.hookspecs`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from katgym import plugins
from katgym.contributions import Entry
from katgym.errors import KatgymError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

logger = logging.getLogger(__name__)


def plugin_commands(built_in: Container[str]) -> dict[str, Entry]:
    """Return the plugins' commands by name; one with a built-in's name is left out, with a
    warning."""
    found = plugins.commands()
    for name, entry in list(found.items()):
        if name in built_in:
            logger.warning(
                "plugin %r wants command %r, which is katgym's own; left out", entry.plugin, name
            )
            del found[name]
    return found


def add_subcommands(
    parser: argparse.ArgumentParser, package: str, summaries: Mapping[str, str]
) -> None:
    """Add subcommands that are modules `{package}.{name}_command` with `add_arguments` and `run`.

    package: for a dash in a name its modules have an underscore. summaries: name -> line of help;
    the rest of the help is the module's docstring.
    """
    subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    for name, summary in summaries.items():
        module = importlib.import_module(f"{package}.{name.replace('-', '_')}_command")
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument(
            "-v", "--verbose", action="store_true", default=argparse.SUPPRESS,
            help="show katgym's log",
        )  # fmt: skip
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)


def add_plugin_command(
    subparsers: _SubParsersAction[Any], entry: Entry, *, is_needed: bool
) -> None:
    """Add a command's line of help, and its arguments if it is the one that is needed.

    Raises `KatgymError` naming the plugin when its entry point cannot be imported.
    """
    parser = subparsers.add_parser(
        entry.name, help=entry.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not is_needed:
        return
    try:
        add_arguments = entry.load()
        parser.description = inspect.getdoc(add_arguments)
        add_arguments(parser)
    except (ImportError, AttributeError) as e:
        raise KatgymError(
            f"command {entry.name!r} of plugin {entry.plugin!r} cannot be loaded: {e}. Hint:"
            f" what it needs may be in an extra, as in pip install 'katgym[{entry.name}]'"
        ) from e
    parser.add_argument("-v", "--verbose", action="store_true", help="show katgym's log")
    if parser.get_default("run") is None and parser._subparsers is None:
        raise KatgymError(
            f"command {entry.name!r} of plugin {entry.plugin!r} sets no default 'run'"
        )
