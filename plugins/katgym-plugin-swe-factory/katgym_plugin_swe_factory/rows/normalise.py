"""Turns one object of a known data set into our row, or says which field does not fit.

Keys of the source that our row lacks are kept in `SweRow.other`. Not here: which format it is
(`row_format.py`); what of the row a rollout may see (`imported_set.py`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym_envs.swe.row import EnvironmentRecipe, KatgymPart, Origin, SweRow
from katgym_plugin_swe_factory.rows.broken_row import RowError
from katgym_plugin_swe_factory.rows.reverse_patch import reverse_patch
from katgym_plugin_swe_factory.rows.row_format import RowFormat, detect_format

_TEXTS = (
    "repo", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at",
    "version", "environment_setup_commit", "image", "eval_script", "log_parser", "eval_type",
)  # fmt: skip
_NEEDED = ("patch", "problem_statement")
_INSTANCE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,199}")


def normalise(data: Mapping[str, Any], *, row_format: RowFormat | None = None) -> SweRow:
    """Return the row; `row_format` None detects it. Raises `RowError` for a field that is wrong."""
    row_format = row_format or detect_format(data)
    values = {name: value for name, value in data.items() if value is not None}
    instance_id = values.get("instance_id")
    if not isinstance(instance_id, str) or not _INSTANCE_ID.fullmatch(instance_id):
        wanted = "a name of letters, digits and ._+=@- (at most 200) is needed"
        raise RowError("instance_id", f"{wanted}, got {instance_id!r:.80}")
    for name in _TEXTS:
        if name in values:
            _text(values[name], name)
    for name in _NEEDED:
        if not str(values.get(name, "")).strip():
            raise RowError(name, "is missing or empty")
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        values[name] = _tests(values.get(name, []), name)
    if row_format is RowFormat.SWE_SMITH:
        values["patch"] = reverse_patch(values["patch"])
        values.setdefault("image", _text(values.pop("image_name", ""), "image_name"))
    elif row_format is RowFormat.SWE_REBENCH:
        values = _from_rebench(values)
    elif row_format is RowFormat.SWE_BENCH and not values.get("image"):
        # SWE-bench 2.x to 4.x name the image of an instance by its id.
        name = instance_id.lower().replace("__", "_1776_")
        values["image"] = f"swebench/sweb.eval.x86_64.{name}:latest"
    for name in ("patch", "test_patch"):
        text = values.get(name, "")
        if text.strip() and "--- " not in text and "diff --git " not in text:
            raise RowError(name, f"not a unified diff: {text[:60]!r}")
    if not values["FAIL_TO_PASS"]:
        raise RowError("FAIL_TO_PASS", "no test is listed, so nothing would tell a fix from none")
    if row_format is not RowFormat.KATGYM:
        values["katgym"] = msgspec.to_builtins(_part(values, row_format))
    try:
        return SweRow.from_json(values)
    except UsageError as e:
        found = re.search(r"`\$\.([\w.\[\]]+)`", str(e))
        raise RowError(found[1] if found else "", str(e)) from e


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(name, f"a text is needed, got {type(value).__name__} {value!r:.80}")
    return value


def _tests(value: Any, name: str) -> list[str]:
    """Return a list of tests that may be given as its JSON text."""
    value = _decode(value, name, "a list")
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise RowError(name, f"a list of test names is needed, got {value!r:.80}")
    # A name twice asks for the same test twice; the order is kept.
    return list(dict.fromkeys(value))


def _from_rebench(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with SWE-rebench's and SWE-bench-Live's keys mapped; all are kept."""
    result = dict(values)
    install = _object(values.get("install_config"), "install_config")
    image = values.get("docker_image") or values.get("image_name") or values.get("image") or ""
    result["image"] = _text(image, "docker_image")
    if not result.get("log_parser"):
        parser = install.get("log_parser") or ""
        result["log_parser"] = _text(parser, "install_config.log_parser")
    test_commands = _commands(values.get("test_cmds"), "test_cmds")
    test_commands = test_commands or _commands(install.get("test_cmd"), "install_config.test_cmd")
    rebuild = _commands(values.get("rebuild_cmds"), "rebuild_cmds")
    if not test_commands and not result.get("eval_script"):
        raise RowError("install_config.test_cmd", "neither it nor test_cmds says how to test")
    if not result.get("eval_script"):
        result["eval_script"] = "".join(f"{line}\n" for line in [*rebuild, *test_commands])
    return result


def _decode(value: Any, name: str, kind: str) -> Any:
    """Return a value that may be given as its JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as e:
        raise RowError(name, f"neither {kind} nor the JSON text of one: {e}") from e


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is None or value == "":
        return {}
    value = _decode(value, name, "an object")
    if not isinstance(value, dict):
        raise RowError(name, f"an object is needed, got {type(value).__name__}")
    return value


def _commands(value: Any, name: str) -> list[str]:
    """Return shell lines given as one text or as a list of them."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise RowError(name, f"a command or a list of them is needed, got {value!r:.80}")
    return value


def _part(values: Mapping[str, Any], row_format: RowFormat) -> KatgymPart:
    number = values.get("pull_number")
    # Images of SWE-rebench V2 have the repository under its name, the others do not.
    is_named = row_format is RowFormat.SWE_REBENCH and {"install_config", "language"} <= set(values)
    name = str(values.get("repo", "")).rpartition("/")[2]
    # The files of the listed tests, as far as they are pytest node ids.
    listed = (*values["FAIL_TO_PASS"], *values["PASS_TO_PASS"])
    files = {node.partition("::")[0] for node in listed if "::" in node}
    return KatgymPart(
        env=EnvironmentRecipe(
            kind="image",
            requirements=(),
            image=values.get("image", ""),
            workdir=f"/{name}" if is_named and name else "/testbed",
        ),
        protected_paths=tuple(sorted(f for f in files if f and f[0] != "/" and ".." not in f)),
        origin=Origin(
            kind="import",
            url=f"{values.get('repo', '')}#{shlex.quote(str(number))}" if number else "",
        ),
        license=str(values.get("license_name") or values.get("license") or ""),
    )
