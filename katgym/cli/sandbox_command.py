"""Look at, check and clean up after sandbox backends.

list    every backend: its level here, whether untrusted code may run, what is enforced how
check   run the conformance suite against one
gc      remove what dead katgym processes left behind

example:
  katgym sandbox list
  katgym sandbox check docker
  katgym sandbox gc
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from katgym import console, plugins
from katgym.errors import KatgymError
from katgym.sandbox import Enforcement, backend
from katgym.sandbox.conformance import ConformanceReport, run_conformance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("action", choices=("list", "check", "gc"))
    parser.add_argument(
        "name", nargs="?", default=None, help="a backend, such as local or sandboxd:URL"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do the action; 1 when a check failed or the named backend cannot work here."""
    if args.action == "check":
        return _check(args.name or "local", is_json=args.json)
    names = [args.name] if args.name else [n for n in plugins.sandboxes() if n != "sandboxd"]
    if args.action == "gc":
        return _collect(names, is_json=args.json)
    return _list(names, is_json=args.json, is_one=args.name is not None)


async def _enforcement(name: str) -> Enforcement:
    made = backend(name)
    try:
        return await made.enforcement()
    finally:
        await made.aclose()


def _list(names: list[str], *, is_json: bool, is_one: bool) -> int:
    found: dict[str, Enforcement | str] = {}
    for name in names:
        try:
            found[name] = asyncio.run(_enforcement(name))
        except KatgymError as e:
            if is_one:
                raise
            found[name] = str(e)
    if is_json:
        console.print_json(
            {
                name: msgspec.to_builtins(f) if isinstance(f, Enforcement) else {"error": f}
                for name, f in found.items()
            }
        )
    else:
        for name, item in found.items():
            _print_backend(name, item)
    return 0


def _print_backend(name: str, found: Enforcement | str) -> None:
    if isinstance(found, str):
        console.stdout.print(Text(f"{name}: not usable here", style="bold yellow"))
        console.stdout.print(Text(f"  {found}"))
        return
    mark = Text("untrusted code may run", style="green")
    if not found.is_safe:
        mark = Text("untrusted code must not run", style="bold red")
    console.stdout.print(Text(f"{name}: {found.level}, ", style="bold") + mark)
    table = Table(box=None, pad_edge=False, show_header=False)
    for limit, how in found.limits.items():
        table.add_row(Text(f"  {limit}"), Text(how))
    table.add_row("  capabilities", Text(", ".join(sorted(found.capabilities)) or "none"))
    console.stdout.print(table)
    for note in found.notes:
        console.stdout.print(Text(f"  note: {note}", style="yellow"))
    failed = {probe: told for probe, told in found.probes.items() if told.startswith("no")}
    for probe, told in failed.items():
        console.stdout.print(Text(f"  probe {probe}: {told}", style="yellow"))


def _check(name: str, *, is_json: bool) -> int:
    async def work() -> ConformanceReport:
        made = backend(name)
        try:
            return await run_conformance(made)
        finally:
            await made.aclose()

    report = asyncio.run(work())
    if is_json:
        console.print_json(msgspec.to_builtins(report))
        return int(not report.ok)
    table = Table(box=None, pad_edge=False, show_header=False)
    marks: Mapping[bool | None, Any] = {
        True: Text("passed", style="green"),
        False: Text("failed", style="bold red"),
        None: Text("skipped", style="yellow"),
    }
    for result in report.results:
        text = result.description if result.passed else f"{result.description}\n{result.detail}"
        table.add_row(marks[result.passed], result.name, Text(text))
    console.stdout.print(table)
    return int(not report.ok)


def _collect(names: list[str], *, is_json: bool) -> int:
    async def work(name: str) -> int:
        made = backend(name)
        try:
            return await made.gc()
        finally:
            await made.aclose()

    removed: dict[str, int | str] = {}
    for name in names:
        try:
            removed[name] = asyncio.run(work(name))
        except KatgymError as e:
            removed[name] = str(e)
    if is_json:
        console.print_json(removed)
        return 0
    for name, count in removed.items():
        text = f"{count} removed" if isinstance(count, int) else f"not usable here: {count}"
        console.stdout.print(Text(f"{name}: {text}"))
    return 0
