"""Makes the sets of specs that come with katgym: "toy" of its own package, "shipped" of the table.

    python -m katgym_envs.swe.making.shipped_sets toy
    python -m katgym_envs.swe.making.shipped_sets shipped --work /var/tmp/shipped

Each package is made by itself, so that every one gives its share. With `--work` a stopped run goes
on in that folder. Not here: making (`set_maker.py`), reading (`sources/mutation_set.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from katgym import console
from katgym.errors import KatgymError
from katgym.sandbox import SandboxBackend, backend
from katgym_envs.swe.making.made_set import write_specs
from katgym_envs.swe.making.set_maker import MakeConfig, make_set
from katgym_envs.swe.packages import known_packages
from katgym_envs.swe.packages.source_tree import TOY as TOY_PACKAGE
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import SHIPPED, TOY
from katgym_envs.swe.sources.row_set import HIDDEN_FOLDER
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec

DATA = Path(__file__).parent.parent / "data"
NUM_TOY_TASKS = 16
MAX_PER_PACKAGE = 40


def packages_of(name: str) -> Mapping[str, int]:
    """Return the packages of a set and how many tasks each may give."""
    if name == TOY:
        return {TOY_PACKAGE: NUM_TOY_TASKS}
    return dict.fromkeys(known_packages(), MAX_PER_PACKAGE)


async def make_specs(
    packages: Mapping[str, int], out: Path, work: Path, sandboxes: SandboxBackend
) -> int:
    """Make tasks of each package below `work`, write the specs to `out`, return their number.

    Raises what `make_set` raises; nothing is written to `out` then.
    """
    specs: list[PackageSpec] = []
    tasks: list[TaskSpec] = []
    for package, num_tasks in packages.items():
        folder = work / package
        config = MakeConfig(packages=(package,), out=folder, num_tasks=num_tasks)
        result = await make_set(config, backend=sandboxes)
        if result.tasks:
            specs.append(MutationSet(folder / HIDDEN_FOLDER).package(result.tasks[0].id))
            tasks += result.tasks
    await asyncio.to_thread(write_specs, out, specs, tasks)
    return len(tasks)


async def _main(name: str, work: Path) -> int:
    sandboxes = backend("local")
    try:
        return await make_specs(packages_of(name), DATA / name, work, sandboxes)
    finally:
        await sandboxes.aclose()


def main(arguments: list[str] | None = None) -> int:
    """Make one of the sets; exit code 2 with a message when it cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m katgym_envs.swe.making.shipped_sets")
    parser.add_argument("name", choices=(TOY, SHIPPED))
    parser.add_argument("--work", type=Path, help="folder to work in (a temporary one)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="katgym-sets-") as temporary:
        try:
            count = asyncio.run(_main(args.name, args.work or Path(temporary)))
        except KatgymError as e:
            console.stderr.print(str(e), markup=False, soft_wrap=True)
            return 2
    console.stdout.print(f"{count} tasks in {str(DATA / args.name)!r}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
