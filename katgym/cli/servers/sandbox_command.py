"""Look at, check and clean up after sandbox backends.

list    every backend: its level here, whether untrusted code may run, what is enforced how
check   run the conformance suite against one (local)
gc      remove what dead katgym processes left behind

example:
  katgym sandbox list
  katgym sandbox check local --only limit --only diff.files
  katgym sandbox check docker --image sha256:3ad80f9815ec
  katgym sandbox gc
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from rich.text import Text

from katgym import console, plugins
from katgym.cli.options import add_option
from katgym.errors import KatgymError
from katgym.sandbox import Enforcement, SandboxBackend, SandboxSpec, backend
from katgym.sandbox.conformance import ConformanceReport, ConformanceResult, run_conformance

T = TypeVar("T")
_MARKS = {
    True: Text("passed ", style="green"),
    False: Text("failed ", style="bold red"),
    None: Text("skipped", style="yellow"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("action", choices=("list", "check", "gc"), help="see above")
    parser.add_argument(
        "name", nargs="?", help="a backend: local, sandboxd:URL, sandboxd:@FILE, ..."
    )
    add_option(
        parser,
        "only",
        "with check: only this check or subject; repeat",
        action="append",
        default=[],
        metavar="CHECK",
    )
    add_option(parser, "image", "with check: image of the sandboxes")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Do the action; 1 when a check failed or the named backend cannot work here."""
    if args.action == "check":
        spec = SandboxSpec(image=args.image)
        return _check(args.name or "local", spec, args.only, is_json=args.json)
    # A sandboxd has to be named with its URL: there is no machine to ask otherwise.
    names = [args.name] if args.name else [n for n in plugins.sandboxes() if n != "sandboxd"]
    if args.action == "gc":
        return _collect(names, is_json=args.json, is_one=args.name is not None)
    return _list(names, is_json=args.json, is_one=args.name is not None)


def _with_backend(name: str, use: Callable[[SandboxBackend], Awaitable[T]]) -> T:
    async def work() -> T:
        made = backend(name)
        try:
            return await use(made)
        finally:
            await made.aclose()

    return asyncio.run(work())


def _each(
    names: list[str], use: Callable[[SandboxBackend], Awaitable[T]], *, is_one: bool
) -> dict[str, T | str]:
    """Return what each backend says, or why it cannot work here; raises that if it is the one."""
    found: dict[str, T | str] = {}
    for name in names:
        try:
            found[name] = _with_backend(name, use)
        except KatgymError as e:
            if is_one:
                raise
            found[name] = str(e)
    return found


def _list(names: list[str], *, is_json: bool, is_one: bool) -> int:
    found = _each(names, lambda made: made.enforcement(), is_one=is_one)
    if is_json:
        console.print_json(
            {name: f if isinstance(f, Enforcement) else {"error": f} for name, f in found.items()}
        )
        return 0
    for name, item in found.items():
        if isinstance(item, str):
            console.stdout.print(Text(f"{name}: not usable here", style="bold yellow"))
            console.stdout.print(Text(f"  {item}"))
            continue
        mark = Text("untrusted code may run", style="green")
        if not item.is_safe:
            mark = Text("untrusted code must not run", style="bold red")
        console.stdout.print(Text(f"{name}: {item.level}, ", style="bold") + mark)
        facts = {**item.limits, "capabilities": ", ".join(sorted(item.capabilities)) or "none"}
        console.print_rows((f"  {fact}", how) for fact, how in facts.items())
        for note in item.notes:
            console.stdout.print(Text(f"  note: {note}", style="yellow"))
        for probe, answer in item.probes.items():
            if answer.startswith("no"):
                console.stdout.print(Text(f"  probe {probe}: {answer}", style="yellow"))
    return 0


def _check(name: str, spec: SandboxSpec, only: list[str], *, is_json: bool) -> int:
    def show(result: ConformanceResult) -> None:
        line = Text.assemble(_MARKS[result.passed], f"  {result.name}  ")
        console.stdout.print(line + Text(result.description, style="dim"), soft_wrap=True)
        if result.detail:
            console.stdout.print(Text(f"         {result.detail}"), soft_wrap=True)

    async def work(made: SandboxBackend) -> ConformanceReport:
        on_result = None if is_json else show
        return await run_conformance(made, spec=spec, only=only, on_result=on_result)

    report = _with_backend(name, work)
    if is_json:
        console.print_json({**msgspec.to_builtins(report), "ok": report.ok})
        return int(not report.ok)
    numbers = [sum(r.passed is kind for r in report.results) for kind in (True, False, None)]
    counts = "{} passed, {} failed, {} skipped".format(*numbers)
    console.stdout.print(Text(f"{name} ({report.enforcement.level}): {counts}", style="bold"))
    return int(not report.ok)


def _collect(names: list[str], *, is_json: bool, is_one: bool) -> int:
    removed = _each(names, lambda made: made.gc(), is_one=is_one)
    if is_json:
        console.print_json(
            {name: n if isinstance(n, int) else {"error": n} for name, n in removed.items()}
        )
        return 0
    for name, count in removed.items():
        text = f"{count} removed" if isinstance(count, int) else f"not usable here: {count}"
        console.stdout.print(Text(f"{name}: {text}"))
    return 0
