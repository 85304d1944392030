"""Writes repair tasks of `katgym/SWE-v0` as Harbor's folders.

What is lost: canaries and rounds (the tests run once, in one process with the agent's code), the
workspace's git commit, near misses by path. Not here: the command (`cli/export_command.py`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath

from katgym.errors import UsageError
from katgym.sandbox.layer import FileEntry, directory_entries, write_tree
from katgym.system import explain_os_error
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.patching import apply_patches, parse_diff
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.task_source import TaskSource

_PROGRAM = Path(__file__).parent / "verify_program.py.txt"
_INFRASTRUCTURE = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", "pytest.py", "_pytest",
    "__pycache__",
)  # fmt: skip
_TEST = """#!/bin/bash
echo 0 > /logs/verifier/reward.txt
python3 -B /tests/verify.py && echo 1 > /logs/verifier/reward.txt
exit 0
"""
# A separate verifier starts from the environment, which files that gold removes would be in.
_CONFIG = """schema_version = "1.4"
artifacts = [{workdir}]

[task]
name = {name}
description = {description}

[metadata]
split = {split}
repo = {repo}
version = {version}
license = {license}
made_by = "katgym, of its env katgym/SWE-v0"

[verifier]
timeout_sec = {timeout_s}
environment_mode = {mode}

[agent]
timeout_sec = 1800.0

[environment]
memory_mb = 2048
network_mode = "no-network"
"""


def export_task(source: TaskSource, task_id: str, folder: Path) -> None:
    """Write one task into a new folder; `UsageError` if there is one, or an image has the task."""
    if folder.exists():
        raise UsageError(f"{str(folder)!r} is there already; name a folder without it")
    row, hidden = source.row(task_id), source.load_hidden(task_id)
    layer = source.workspace(task_id).layer
    if layer is None:
        raise UsageError(f"task {task_id!r} lies in image {row.image!r}, not in files")
    base = directory_entries(layer.path, exclude=())
    base_files = source.base_files(task_id)
    gold = apply_patches(base_files, parse_diff(hidden.gold_patch))
    removed = sorted(path for path, entry in gold.items() if entry is None)
    infrastructure = {p: e for p, e in base.items() if PurePosixPath(p).name in _INFRASTRUCTURE}
    texts = {
        "task.toml": _config(row, hidden, is_separate=not removed),
        "instruction.md": _instruction(row),
        "environment/Dockerfile": _dockerfile(row),
        "tests/verify.py": _PROGRAM.read_text(encoding="utf-8"),
        "tests/plan.json": json.dumps(_plan(row, hidden), indent=1) + "\n",
    }
    scripts = {
        "tests/test.sh": _TEST,
        "solution/solve.sh": _solution(row.katgym.env.workdir, removed),
    }
    files = {path: FileEntry(content=text.encode()) for path, text in texts.items()}
    for path, text in scripts.items():
        files[path] = FileEntry(content=text.encode(), is_executable=True)
    with explain_os_error(folder):
        write_tree(folder, files)
        write_tree(folder / "environment" / "repo", base)
        write_tree(folder / "tests" / "files", {**infrastructure, **hidden.files})
        write_tree(folder / "solution" / "files", {p: e for p, e in gold.items() if e is not None})


def _config(row: SweRow, hidden: HiddenTests, *, is_separate: bool) -> str:
    """Return task.toml."""
    values = {
        "workdir": row.katgym.env.workdir,
        "name": f"katgym/{row.instance_id}",
        "description": f"Repair {row.repo} {row.version}",
        "split": row.katgym.split,
        "repo": row.repo,
        "version": row.version,
        "license": row.katgym.license,
        "timeout_s": 60 + 2 * hidden.timeout_s,
        "mode": "separate" if is_separate else "shared",
    }
    # JSON's strings and numbers are TOML's.
    return _CONFIG.format_map({name: json.dumps(value) for name, value in values.items()})


def _instruction(row: SweRow) -> str:
    return (
        f"The repository of {row.repo} {row.version} is in {row.katgym.env.workdir}. Repair the"
        " problem below by changing its code; hidden tests decide whether it is solved. Changes to"
        f" tests and to their configuration do not count.\n\n{row.problem_statement.strip()}\n"
    )


def _dockerfile(row: SweRow) -> str:
    recipe = row.katgym.env
    places = [path.strip("./") and f"/{path}" for path in recipe.python_path]
    env = {
        "PYTHONPATH": ":".join(recipe.workdir + place for place in places),
        "PYTHONDONTWRITEBYTECODE": "1",
        **recipe.env,
    }
    return "".join(
        [
            "FROM python:{}.{}-slim\n".format(*sys.version_info),
            f"RUN pip install --no-cache-dir {' '.join(recipe.requirements)}\n",
            *(f"ENV {name}={json.dumps(value)}\n" for name, value in env.items()),
            f"WORKDIR {recipe.workdir}\n",
            f"COPY repo/ {recipe.workdir}/\n",
        ]
    )


def _plan(row: SweRow, hidden: HiddenTests) -> dict[str, object]:
    nodes = [*hidden.fail_to_pass, *hidden.pass_to_pass]
    return {
        "workdir": row.katgym.env.workdir,
        "python_path": list(row.katgym.env.python_path),
        "infrastructure": list(_INFRASTRUCTURE),
        "modules": sorted({node.partition("::")[0] for node in nodes}),
        "nodes": nodes,
    }


def _solution(workdir: str, removed: list[str]) -> str:
    lines = ["#!/bin/bash", "set -e", f"cp -r /solution/files/. {workdir}/"]
    lines += [f"rm -f -- {json.dumps(f'{workdir}/{path}')}" for path in removed]
    return "\n".join(lines) + "\n"
