"""Subcommands that plugins add to `katgym` by hook `katgym_register_commands`.

Not here: katgym's own (`main.py`); the hook (`katgym.hookspecs`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from katgym import plugins
from katgym.errors import KatgymError
from katgym.plugins.contributions import Entry

if TYPE_CHECKING:
    from argparse import _SubParsersAction

logger = logging.getLogger(__name__)
_BEHIND_OPTIONS = {"doctor model"}
"""What katgym's own commands ask plugins for: `katgym doctor --model`. No command by itself."""


def plugin_commands(built_in: Container[str]) -> dict[str, Entry]:
    """Return the plugins' commands by name, "swe make" being subcommand `make` of command `swe`.

    One with the name of a built-in, or of its subcommand, is left out with a warning; so is a
    subcommand of a command that nobody registers.
    """
    found = plugins.commands()
    for name, entry in list(found.items()):
        group, _, subcommand = name.partition(" ")
        if name in _BEHIND_OPTIONS:
            del found[name]
            continue
        if group in built_in:
            reason = "which is katgym's own" if not subcommand else f"but {group!r} is katgym's own"
        elif group not in found:
            reason = f"but there is no command {group!r}"
        else:
            continue
        logger.warning("plugin %r wants command %r, %s; left out", entry.plugin, name, reason)
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
        sub = subparsers.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)


def add_missing_subcommands(
    parser: argparse.ArgumentParser, group: str, names: Iterable[str], distribution: str
) -> None:
    """Add those of a distribution's subcommands that no plugin registers: they fail with what to
    install.

    group: the command that `parser` is of.
    """
    known = plugins.commands()
    for name in names:
        if f"{group} {name}" not in known:
            _add_failing(
                _subparsers(parser),
                name,
                f"`katgym {group} {name}` comes with a distribution of its own: pip install"
                f" {distribution}. Hint: if it is installed, `katgym plugins` says why it is not"
                " loaded",
                help=f"needs pip install {distribution}",
            )


def add_plugin_command(
    subparsers: _SubParsersAction[Any],
    entry: Entry,
    *,
    is_needed: bool,
    subcommands: Mapping[str, Entry],
) -> None:
    """Add a command's line of help; if it is the one that is needed, its arguments, too.

    subcommands: name -> what other plugins add to it; one that cannot be imported fails when it
    runs. Raises `KatgymError` naming the plugin when the command's entry point cannot be imported.
    """
    if not is_needed:
        subparsers.add_parser(entry.name, help=entry.description)
        return
    parser = _add_entry(subparsers, entry.name, entry)
    for name, subcommand in subcommands.items():
        action = _subparsers(parser)
        if name in action.choices:
            logger.warning(
                "plugin %r wants command %r, which is there; left out",
                subcommand.plugin, subcommand.name,
            )  # fmt: skip
            continue
        try:
            _add_entry(action, name, subcommand)
        except KatgymError as e:
            _add_failing(action, name, str(e), help=subcommand.description)


def _add_entry(
    subparsers: _SubParsersAction[Any], name: str, entry: Entry
) -> argparse.ArgumentParser:
    try:
        add_arguments = entry.load()
    except (ImportError, AttributeError) as e:
        raise KatgymError(
            f"command {entry.name!r} of plugin {entry.plugin!r} cannot be loaded: {e}. Hint:"
            f" what it needs may be in an extra, as in pip install 'katgym[{entry.name}]'"
        ) from e
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=entry.description, description=inspect.getdoc(add_arguments)
    )
    add_arguments(parser)
    if parser.get_default("run") is None and parser._subparsers is None:
        raise KatgymError(
            f"command {entry.name!r} of plugin {entry.plugin!r} sets no default 'run'"
        )
    return parser


def _add_failing(subparsers: _SubParsersAction[Any], name: str, error: str, *, help: str) -> None:
    """Add a subcommand that takes any arguments and raises `KatgymError(error)`."""

    def run(args: argparse.Namespace) -> int:
        raise KatgymError(error)

    # No argument begins with NUL, so all of them, options as well, are what is taken.
    parser = subparsers.add_parser(name, help=help, prefix_chars="\0", add_help=False)
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=run)


def _subparsers(parser: argparse.ArgumentParser) -> _SubParsersAction[Any]:
    """Return the subcommands of a command; `KatgymError` if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action
    raise KatgymError(f"{parser.prog!r} takes no subcommands")
