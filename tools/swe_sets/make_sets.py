"""Writes the sets that come with katgym: specs only, from a set that was made.

    cd tools && python -m swe_sets.make_sets toy                         # makes it anew; seconds
    katgym swe make --package inflection ... --out big --tasks 800              # some hours
    cd tools && python -m swe_sets.make_sets shipped --from big

Not here: making (`set_maker.py`), and with it the trust of each task.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from katgym.environment.reward import Trust
from katgym.errors import UsageError
from katgym.sandbox import backend
from katgym_envs.swe.packages.source_tree import TOY
from katgym_envs.swe.sources.mutation_set import MutationSet, read_package
from katgym_envs.swe.sources.open_source import DATA
from katgym_envs.swe.sources.row_set import HIDDEN_FOLDER
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec
from katgym_plugin_swe_factory.making.made_set import write_specs
from katgym_plugin_swe_factory.making.make_config import MakeConfig
from katgym_plugin_swe_factory.making.mutation_source import MutationSource
from katgym_plugin_swe_factory.making.set_maker import make_set

TOY_SPLITS = ("train",) * 8 + ("validation",) * 3 + ("test",) * 5
"""The toy has one package, and nothing is learnt from it: its tasks serve every split."""


def main(arguments: list[str] | None = None) -> int:
    """Write one set below `data/`."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make_sets")
    parser.add_argument("name", choices=("toy", "shipped"))
    parser.add_argument("--from", dest="source", type=Path, help="a folder of `katgym swe make`")
    parser.add_argument("--per-package", type=int, default=40, help="tasks of one package (40)")
    parser.add_argument(
        "--num-partial", type=int, default=10, help="those among them whose trust is partial (10)"
    )
    parser.add_argument("--out", type=Path, help="where to write (katgym's own data)")
    args = parser.parse_args(arguments)
    out = args.out or DATA / args.name
    if args.name == "toy":
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "toy"
            asyncio.run(_make_toy(made))
            most = len(TOY_SPLITS)
            num = ship(made, out, per_package=most, num_partial=most, splits=TOY_SPLITS)
    elif args.source is None:
        raise UsageError("'shipped' needs --from DIR: a folder that `katgym swe make` wrote")
    else:
        num = ship(args.source, out, per_package=args.per_package, num_partial=args.num_partial)
    sys.stdout.write(f"{num} tasks in {str(out)!r}\n")
    return 0


async def _make_toy(folder: Path) -> None:
    sandboxes = backend("local")
    try:
        config = MakeConfig(packages=(TOY,), out=folder, num_tasks=len(TOY_SPLITS))
        await make_set(MutationSource(config, sandboxes))
    finally:
        await sandboxes.aclose()


def ship(
    made: Path,
    out: Path,
    *,
    per_package: int,
    num_partial: int,
    splits: Sequence[str] = (),
) -> int:
    """Copy chosen tasks of a made set, with their trust levels; return how many there are.

    splits: of the tasks by number; none keeps those that the set has.
    """
    source = MutationSet(made / HIDDEN_FOLDER)
    levels = source.trust
    tasks = choose_tasks(
        list(source.specs.values()), levels, per_package=per_package, num_partial=num_partial
    )
    packages = [
        _keep_used(read_package(made / HIDDEN_FOLDER / "packages" / f"{key}.json"), tasks)
        for key in sorted({task.package for task in tasks})
    ]
    tasks.sort(key=lambda task: task.id)
    for number, split in enumerate(splits):
        tasks[number] = msgspec.structs.replace(tasks[number], split=split)
    write_specs(out, packages, tasks)
    MutationSet(out).write_trust({t.id: levels[t.id] for t in tasks if t.id in levels})
    return len(tasks)


def choose_tasks(
    tasks: Sequence[TaskSpec],
    levels: Mapping[str, Trust],
    *,
    per_package: int,
    num_partial: int,
) -> list[TaskSpec]:
    """Return up to `per_package` tasks of each package, at most `num_partial` of partial trust.

    Those of complete trust come first, and of equal trust those that were made first.
    """
    counts: Counter[str] = Counter()
    partial: Counter[str] = Counter()
    chosen: list[TaskSpec] = []
    for is_complete in (True, False):
        for task in tasks:
            if (levels.get(task.id) is Trust.COMPLETE) is not is_complete:
                continue
            if counts[task.package] < per_package and (
                is_complete or partial[task.package] < num_partial
            ):
                counts[task.package] += 1
                partial[task.package] += not is_complete
                chosen.append(task)
    return chosen


def _keep_used(package: PackageSpec, tasks: list[TaskSpec]) -> PackageSpec:
    """Return a package with the canaries that touch a test of these tasks."""
    wanted = {n for task in tasks if task.package == package.key for n in task.fail_to_pass}
    kept = tuple(c for c in package.canaries if wanted & set(c.fails))
    return msgspec.structs.replace(package, canaries=kept)


if __name__ == "__main__":
    sys.exit(main())
