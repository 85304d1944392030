"""TOML files, and the settings that a command line puts in place of theirs.

A setting is `KEY=VALUE`: the key's tables joined by dots, numbers for the tables of an array, and
a value in TOML; a word that is none is a string.

    train.learning_rate=3e-4    envs.0.weight=2.0    train.schedule=cosine

Not here: tables as dataclasses (`sections.py`).
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
        apply_setting(raw, setting)
    return raw


def kept_text(path: Path, settings: Sequence[str] = ()) -> str:
    """Return a file's text with the settings as comments below it."""
    text = path.read_text(encoding="utf-8")
    if not settings:
        return text
    return "\n".join([text.rstrip("\n"), "", *(f"# --set {setting}" for setting in settings), ""])


def apply_setting(raw: dict[str, Any], setting: str) -> None:
    """Put `KEY=VALUE` into tables; `UsageError` if it is none, or the tables have no such place."""
    key, equals, text = setting.partition("=")
    *parents, last = (part.strip() for part in key.split("."))
    if not (equals and all(parents) and last):
        raise UsageError(
            f"a setting is KEY=VALUE, such as train.learning_rate=3e-4; got {setting!r}"
        )
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    found: Any = raw
    for part in parents:
        if isinstance(found, list):
            found = found[_index(found, part, setting)]
        elif isinstance(found, dict):
            found = found.setdefault(part, {})
        else:
            raise _no_table(found, part, setting)
    if isinstance(found, list):
        found[_index(found, last, setting)] = value
    elif isinstance(found, dict):
        found[last] = value
    else:
        raise _no_table(found, parents[-1], setting)


def _index(found: list[Any], part: str, setting: str) -> int:
    if not part.isdecimal() or int(part) >= len(found):
        raise UsageError(
            f"--set {setting}: an array of {len(found)} is there, from 0; got {part!r}"
        )
    return int(part)


def _no_table(found: Any, part: str, setting: str) -> UsageError:
    return UsageError(f"--set {setting}: before {part!r} comes a table, not {found!r}")
