"""Blocks of a documentation page, and what a test does with each: run it, write it, or say why not.

    plans = [("katgym eval", Run({"--tasks 20": "--tasks 2"})), ("Rank  Run", Shown())]
    run_page(user, page, plans, folder)

Not here: the plans of the pages (`page_plans.py`), who runs them (`pip_user.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pip_user import ROOT, PipUser

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
MAX_SHOWN = 3000
"""Characters of the output of a block that failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run it with bash, or, where lines begin with `$ `, those lines."""

    replaced: Mapping[str, str] = field(default_factory=dict)
    """Texts of the block -> smaller ones, so that it takes seconds."""
    prints: str = ""
    """What it prints among other things."""
    code: int = 0
    """Its exit code."""


@dataclass(frozen=True, slots=True)
class Python:
    """Run it after the page's Python blocks above it, in one process with the last of them."""

    name: str = ""
    """A file that it is written to as well."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write it to a file, which blocks below use."""

    name: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    then: str = ""
    """A script that uses it at once, where no block below does."""


@dataclass(frozen=True, slots=True)
class Shown:
    """It is what a command prints, or a form to fill in: there is nothing to run."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """It needs what a test does not have."""

    reason: str


Plan = Run | Python | Write | Shown | NotRun
Plans = Sequence[tuple[str, Plan]]
"""How each block of a page begins, and what is done with it, in order."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return a page's blocks: their languages and texts."""
    return _BLOCK.findall(page.read_text())


def check_plans(page: Path, plans: Plans) -> None:
    """Fail unless every block has its plan, in order."""
    found = blocks(page)
    for (_, text), (start, _) in zip(found, plans, strict=False):
        assert text.startswith(start), f"{page.name}: planned is {start!r}, found\n{text}"
    assert len(found) == len(plans), (
        f"{page.name}: {len(found)} blocks and {len(plans)} plans. Say in page_plans.py what to do"
        f" with\n{[text.splitlines()[0] for _, text in found[len(plans) :]]}"
    )


def run_page(user: PipUser, page: str, plans: Plans, before: str = "") -> None:
    """Do with a page's blocks what is planned, top to bottom, in a folder of its own.

    page: from the repository's root. before: a script that makes what the page begins with.
    """
    path = ROOT / page
    check_plans(path, plans)
    folder = user.home / path.stem
    folder.mkdir()
    if before:
        _run(user, ("bash", "-ec", before), folder, before, Run())
    found = [(text, plan) for (_, text), (_, plan) in zip(blocks(path), plans, strict=True)]
    python = [text for text, plan in found if isinstance(plan, Python)]
    num_python = 0
    for text, plan in found:
        if isinstance(plan, Python):
            num_python += 1
            if plan.name:
                (folder / plan.name).write_text(text)
            if num_python == len(python):
                (folder / "page.py").write_text("\n".join(python))
                _run(user, ("python", "-W", "error", "page.py"), folder, text, Run())
        elif isinstance(plan, Write):
            (folder / plan.name).write_text(_replace(text, plan.replaced))
            if plan.then:
                _run(user, ("bash", "-ec", plan.then), folder, plan.then, Run())
        elif isinstance(plan, Run):
            script = _replace(_commands(text), plan.replaced)
            _run(user, ("bash", "-ec", script), folder, script, plan)


def _run(user: PipUser, command: tuple[str, ...], folder: Path, text: str, plan: Run) -> None:
    done = user.run(*command, folder=folder)
    told = f"{text}\nexit code {done.returncode}\n{done.stdout[-MAX_SHOWN:]}"
    assert done.returncode == plan.code, told
    assert plan.prints in done.stdout, told
    assert "Traceback" not in done.stdout, told


def _commands(text: str) -> str:
    """Return a block without what its commands print: lines behind `$ `, with those continued."""
    if not re.search(r"^\$ ", text, re.M):
        return text
    kept, goes_on = [], False
    for line in text.splitlines():
        if line.startswith("$ ") or goes_on:
            kept.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    return "\n".join(kept)


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        assert old in text, f"{old!r} is not in\n{text}"
        text = text.replace(old, new)
    return text
