"""Options of the command line, derived from config classes, and those that many commands share.

    OPTIONS = ConfigOptions(EvalConfig, flags=("policy", "num_tasks"), positional=("envs",))
    OPTIONS.add(parser)                  # ENV..., --policy, --tasks, --set KEY=VALUE
    config = OPTIONS.config(arguments)   # an EvalConfig

A field has its option's name, type, default and help. Fields without an option of their own are
set by `--set KEY=VALUE`. Not here: how a command line is parsed (`parser.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import operator
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from katgym.config.field_docs import field_docs
from katgym.config.sections import default_of, field_types, section
from katgym.config.toml_files import apply_setting
from katgym.errors import UnknownNameError, UsageError, check_name, unknown_name

T = TypeVar("T")

SHARED: Mapping[str, Mapping[str, Any]] = {
    "card": {"metavar": "NAME", "help": "kind of GPU"},
    "device": {"help": "what vLLM computes on"},
    "dry-run": {"action": "store_true", "help": "say what would be done"},
    "format": {"metavar": "NAME", "help": "format of the rows"},
    "host": {"metavar": "ADDRESS", "help": "address to listen on"},
    "json": {"action": "store_true", "help": "print JSON"},
    "limit": {"type": int, "metavar": "N", "help": "how many to show"},
    "model": {"metavar": "MODEL", "help": "model"},
    "out": {"type": Path, "metavar": "PATH", "help": "where to write"},
    "port": {"type": int, "metavar": "N", "help": "port to listen on, 0 for a free one"},
    "python": {"metavar": "PATH", "help": "Python interpreter"},
    "sandbox": {"metavar": "BACKEND", "help": "backend of the sandboxes"},
    "seed": {"type": int, "metavar": "N", "help": "same seed, same result"},
    "set": {
        "action": "append",
        "default": [],
        "dest": "settings",
        "metavar": "KEY=VALUE",
        "help": "another value for a setting, in TOML; repeat",
    },
    "split": {"metavar": "SPLIT", "help": "split of the tasks: train, validation or test"},
    "status": {"action": "append", "help": "sessions in this state; repeat"},
    "store": {"type": Path, "metavar": "DIR", "help": "folder of the rollout store"},
    "task": {"metavar": "ID", "help": "id of a task"},
    "tasks": {"type": int, "metavar": "N", "help": "how many tasks"},
    "workers": {"type": int, "metavar": "N", "help": "how many at a time"},
}
"""Name of an option that several commands have -> what is the same in all of them. The help is what
it means; a command adds a detail behind a colon."""


def add_option(
    parser: argparse._ActionsContainer, name: str, detail: str = "", **more: Any
) -> argparse.Action:
    """Add `--name`, as `SHARED` has it if several commands do.

    detail: the help; behind the meaning of an option that is shared.
    """
    keywords = {**SHARED.get(name, {}), **more}
    meaning = keywords.get("help", "")
    if detail and not detail.startswith(meaning):
        detail = f"{meaning}{' ' if detail.startswith('(') else ': '}{detail}"
    keywords["help"] = (detail or meaning).replace("%", "%%")
    return parser.add_argument(f"--{name}", **keywords)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One field of a config class, or of a config class inside it.

    Example:
        Knob(path="sampling.top_k", type=int, default=0, doc="Tokens kept; 0 keeps all.")
    """

    path: str
    """Names of the fields, joined by dots."""
    type: Any
    """Its annotation, names in it resolved."""
    default: Any
    """`dataclasses.MISSING` for none."""
    doc: str
    """The string under the field."""

    @property
    def option(self) -> str:
        """The option's name: the field's, without the prefix of a count or truth, and its unit."""
        name = self.path.rpartition(".")[2]
        for prefix in ("num_", "is_", "has_"):
            name = name.removeprefix(prefix)
        return name.removesuffix("_s").replace("_", "-")

    @property
    def parts(self) -> tuple[Any, bool]:
        """The type of one value, without None, and whether there may be several."""
        hint = self.type
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            return typing.get_args(hint)[0], True
        return hint, False

    def help(self, default: Any) -> str:
        """Return the documentation as an option's help, with the default if it says something."""
        text = self.doc if self.doc.endswith("..") else self.doc.removesuffix(".")
        if text[1:2].islower() or text[1:2] == " ":
            text = text[:1].lower() + text[1:]
        says_nothing = default is None or default is False or default in ("", (), {})
        if default is dataclasses.MISSING or says_nothing:
            return text
        return f"{text} ({default:g})" if isinstance(default, float) else f"{text} ({default})"


def knobs(cls: type, prefix: str = "") -> Iterator[Knob]:
    """Yield the fields of a config class, those of a config class inside it in its place."""
    types_of, docs = field_types(cls), field_docs(cls)
    for field in dataclasses.fields(cls):
        kind = types_of[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from knobs(kind, f"{prefix}{field.name}.")
        else:
            yield Knob(
                path=prefix + field.name,
                type=kind,
                default=default_of(field),
                doc=docs.get(field.name, ""),
            )


def describe_keys(texts: Mapping[str, str]) -> str:
    """Return names and what they mean as lines of a help text."""
    lines = [
        textwrap.fill(
            f"{name}: {text}",
            width=96,
            initial_indent="  ",
            subsequent_indent="      ",
            break_long_words=False,
        )
        for name, text in texts.items()
    ]
    return "\n".join(lines).replace("%", "%%")


class ConfigOptions(Generic[T]):
    """The options of a command that make a config."""

    def __init__(
        self,
        cls: type[T],
        *,
        flags: Sequence[str] = (),
        positional: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        """Choose how fields, by their paths, are given.

        flags, positional: these have an option, or an argument, of their own. names: what that is
        called, where it is not `Knob.option`. defaults: other ones than the class's. hidden: not
        given by a user.
        """
        self._cls = cls
        self._flags, self._positional = flags, positional
        self._names, self._defaults = names or {}, defaults or {}
        known = {knob.path: knob for knob in knobs(cls)}
        self._knobs = {path: knob for path, knob in known.items() if path not in hidden}
        self._settable = [
            path for path in self._knobs if path not in positional and path not in flags
        ]
        for path in (*flags, *positional, *self._names, *self._defaults, *hidden):
            check_name(f"field of {cls.__name__}", path, known)
        for path, knob in self._knobs.items():
            if not knob.doc:
                raise UsageError(f"{cls.__name__}.{path} has no documentation to be its help")

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, and `--set` where fields are left for it."""
        for path in self._positional:
            knob = self._knobs[path]
            _, has_several = knob.parts
            metavar = self._names.get(path, knob.option).upper()
            parser.add_argument(
                path, metavar=metavar, nargs="+" if has_several else None, help=knob.help(None)
            )
        for path in self._flags:
            self._add_flag(parser, self._knobs[path])
        if not self._settable:
            return
        texts = {path: self._knobs[path].help(self._default(path)) for path in self._settable}
        add_option(parser.add_argument_group("settings", describe_keys(texts)), "set")

    def _add_flag(self, parser: argparse.ArgumentParser, knob: Knob) -> None:
        kind, has_several = knob.parts
        default = self._default(knob.path)
        name = self._names.get(knob.path, knob.option)
        more: dict[str, Any] = {"dest": knob.path, "default": None}
        if kind is bool:
            more["action"] = "store_true"
        elif isinstance(kind, type) and issubclass(kind, enum.StrEnum):
            more["choices"] = [str(member) for member in kind if member]
        elif typing.get_origin(kind) is typing.Literal:
            more["choices"] = typing.get_args(kind)
        else:
            more["type"] = None if kind is str else kind
            if "metavar" not in SHARED.get(name, {}):
                seconds = "SECONDS" if knob.path.endswith("_s") else None
                known = {int: "N", float: "X", Path: "PATH"}
                more["metavar"] = seconds or known.get(kind, name.upper().replace("-", "_"))
        if has_several:
            more["action"] = "append"
        if default is dataclasses.MISSING:
            more["required"] = True
        add_option(parser, name, knob.help(default) + ("; repeat" if has_several else ""), **more)

    def _default(self, path: str) -> Any:
        return self._defaults.get(path, self._knobs[path].default)

    def config(self, args: argparse.Namespace, **values: Any) -> T:
        """Return the config; `UsageError` for values that are not allowed.

        values: fields that the command itself decides.
        """
        raw: dict[str, Any] = {}
        for path in self._knobs:
            value = getattr(args, path, None)
            if value is None:
                value = self._defaults.get(path)
            if value is not None:
                *parents, last = path.split(".")
                found = raw
                for parent in parents:
                    found = found.setdefault(parent, {})
                found[last] = value
        for setting in getattr(args, "settings", ()):
            self._check_setting(setting)
            apply_setting(raw, setting)
        return section(self._cls, {**raw, **values}, self._cls.__name__)

    def given(self, args: argparse.Namespace) -> list[str]:
        """Return the options that the command line has, without --set."""
        return [
            f"--{self._names.get(path, self._knobs[path].option)}"
            for path in self._flags
            if getattr(args, path) is not None
        ]

    def arguments(self, config: T) -> list[str]:
        """Return the command line that makes a config; what has its default is left out."""

        def values(path: str) -> list[Any]:
            value = operator.attrgetter(path)(config)
            if value == self._default(path):
                return []
            return list(value) if self._knobs[path].parts[1] else [value]

        found = [str(value) for path in self._positional for value in values(path)]
        for path in self._flags:
            option = f"--{self._names.get(path, self._knobs[path].option)}"
            for value in values(path):
                found += [option] if value is True else [option, str(value)]
        for path in self._settable:
            if told := values(path):
                value = told if self._knobs[path].parts[1] else told[0]
                found += ["--set", f"{path}={json.dumps(value)}"]
        return found

    def _check_setting(self, setting: str) -> None:
        """Raise for a setting of what is no field, or has an option of its own."""
        key = setting.partition("=")[0].strip()
        if key in self._settable:
            return
        inside = key.partition(".")[0]  # of a field that is a mapping
        origin = typing.get_origin(self._knobs[inside].type) if inside in self._settable else None
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return
        if key in self._flags:
            name = self._names.get(key, self._knobs[key].option)
            raise UsageError(f"--set {key}=...: this has an option of its own, --{name}")
        raise UnknownNameError(unknown_name("setting", key, self._settable))
