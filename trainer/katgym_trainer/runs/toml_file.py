"""Reads a run's TOML file, and the settings that a command line puts in place of the file's.

A setting is `KEY=VALUE`: the key's tables joined by dots, numbers for the tables of an array, and
a value in TOML; a word that is none is a string.

    train.learning_rate=3e-4    envs.0.weight=2.0    train.schedule=cosine

Not here: sections as dataclasses (`toml_sections.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from katgym.errors import UsageError


def read_toml(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return a file's content with some settings replaced; `UsageError` says what is wrong."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read {str(path)!r}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{str(path)!r} is not TOML: {e}") from e
    for setting in settings:
        _apply(raw, setting)
    return raw


def kept_text(path: Path, settings: Sequence[str] = ()) -> str:
    """Return a file's text with the settings as comments below it."""
    text = path.read_text(encoding="utf-8")
    if not settings:
        return text
    return "\n".join([text.rstrip("\n"), "", *(f"# --set {setting}" for setting in settings), ""])


def _apply(raw: dict[str, Any], setting: str) -> None:
    key, equals, value = setting.partition("=")
    *parents, last = (part.strip() for part in key.split("."))
    if not (equals and all(parents) and last):
        raise UsageError(
            f"a setting is KEY=VALUE, such as train.learning_rate=3e-4; got {setting!r}"
        )
    found: Any = raw
    for part in parents:
        found = _item(found, part, setting)
    if isinstance(found, list):
        found[_index(found, last, setting)] = _value(value)
    elif isinstance(found, dict):
        found[last] = _value(value)
    else:
        raise _no_table(found, parents[-1], setting)


def _item(found: Any, part: str, setting: str) -> Any:
    if isinstance(found, list):
        return found[_index(found, part, setting)]
    if isinstance(found, dict):
        return found.setdefault(part, {})
    raise _no_table(found, part, setting)


def _index(found: list[Any], part: str, setting: str) -> int:
    if not part.isdecimal() or int(part) >= len(found):
        raise UsageError(
            f"--set {setting}: an array of {len(found)} is there, from 0; got {part!r}"
        )
    return int(part)


def _no_table(found: Any, part: str, setting: str) -> UsageError:
    return UsageError(f"--set {setting}: before {part!r} comes a table, not {found!r}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
