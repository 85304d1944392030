"""Runs `player.py` in a sandbox of its own: a job to its record.

Not here: what is done in the sandbox (`player.py`), verdicts (`judging.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import katgym
from katgym.sandbox import SandboxLimits, SandboxSpec, layer_store, shared_backend
from katgym.sandbox.venvs.venv import ensure_venv
from katgym_plugin_web.player import STARTED

PROGRAMS = ("/usr/lib/chromium/chromium-headless-shell", "chrome-headless-shell")
VARIABLE = "KATGYM_HEADLESS_SHELL"
CPU_S, WALL_S = 8.0, 600.0
"""What one play may take; an honest page takes about one second of CPU, on a busy machine, too."""
_LIMITS = SandboxLimits(
    cpu_s=CPU_S,
    wall_s=WALL_S + 5,
    memory_bytes=1 << 30,
    max_processes=300,
    output_bytes=16 << 20,
)
_MODULES = ("__init__", "tab", "player")
_FONTS = b"<fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fonts</cachedir></fontconfig>"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was seen of a page that was played."""

    failure: str = ""
    """Why the play broke off: the page hangs, crashes, takes too much memory; "" if it did not."""
    looks: list[dict[str, Any]] = field(default_factory=list)
    """For each look `at_ms`, `state`, `elements`, `png` (base64)."""
    missing: list[str] = field(default_factory=list)
    """Elements that a step was for and that were not there."""
    console: list[str] = field(default_factory=list)
    """Errors that the page raised or logged."""
    requests: list[str] = field(default_factory=list)
    """What the page tried to load."""
    cpu_s: float = 0.0
    """Seconds of CPU of the player and the browser."""


def find_program() -> str:
    """Return the path of Chromium's headless shell."""
    named = os.environ.get(VARIABLE)
    found = next(filter(None, map(shutil.which, [named] if named else PROGRAMS)), None)
    if found is None:
        raise katgym.MissingDependencyError(
            f"no headless shell{f' at {named!r}' if named else ''}: apt-get install"
            f" chromium-headless-shell, or set {VARIABLE} to a path below /usr"
        )
    return found


async def play(
    html: str,
    steps: list[list[Any]],
    *,
    size: tuple[int, int],
    seed: int = 0,
    start_ms: int = 1_700_000_000_000,
    sandbox: str = "local",
) -> Record:
    """Play a page in a fresh browser in a fresh sandbox; `InfrastructureError` if that fails.

    steps: names of `do_*` with their arguments. seed: of `Math.random`; start_ms: the time
    that it is when the page loads, since 1970. What the page does never raises.
    """
    here = Path(__file__).parent
    files = {f"{here.name}/{name}.py": (here / f"{name}.py").read_bytes() for name in _MODULES}
    layer = layer_store().add_files({**files, "fonts.conf": _FONTS})
    spec = SandboxSpec(
        layers=(layer,),
        limits=_LIMITS,
        python=await asyncio.to_thread(ensure_venv, ()),
        env={"FONTCONFIG_FILE": "/workspace/fonts.conf", "TZ": "UTC"},
    )
    job = {
        "program": find_program(),
        "html": html,
        "steps": steps,
        "size": size,
        "seed": seed,
        "start_ms": start_ms,
        "timeout_s": WALL_S,
    }
    async with await shared_backend(sandbox).create(spec) as made:
        result = await made.exec(
            ["python3", "-m", f"{here.name}.player"], stdin=json.dumps(job).encode()
        )
    if result.ok and not result.stdout_omitted:
        return Record(**json.loads(result.stdout), cpu_s=result.cpu_s)
    if STARTED.encode() not in result.stderr:
        raise katgym.InfrastructureError(f"the browser does not start: {result.text()[-500:]}")
    if result.is_timed_out:
        return Record(failure="the page takes too much time", cpu_s=result.cpu_s)
    if result.is_out_of_memory:
        return Record(failure="the page takes too much memory", cpu_s=result.cpu_s)
    return Record(failure="the page breaks its browser", cpu_s=result.cpu_s)
