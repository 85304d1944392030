"""Structure of the house: circles of imports, of modules and of rooms; options; lines.

    python tools/house.py                    # a table
    python tools/house.py --check            # exit 1 where a figure that may be none is not
    python tools/house.py --repo OLD --json  # another checkout's figures, for a comparison
    python tools/house.py --list circles     # what stands behind a figure

Only the source is read, but for the options, which the parser of the checkout itself tells. Product
is the four packages and the plugins; a room is a folder of a package, with all below it. Lines are
printed for whoever watches them, and held to nothing. Not here: layers (`lint-imports`).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PRODUCT = {
    "katgym": "katgym",
    "envs": "envs/katgym_envs",
    "trainer": "trainer/katgym_trainer",
    "kernels": "kernels/katgym_kernels",
    "plugins": "plugins",
}
"""Name in the table -> folder."""

NONE_ALLOWED = ("circles", "options_without_help")
# TODO(no circle of rooms is left): "room_circles" as well.

IMPORT_OF_OPTIONS = """
import argparse, json
from katgym.cli.main import build_parser
def walk(parser, name):
    subs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subs:
        own = [a for a in parser._actions if a.option_strings and a.dest != "help"]
        yield name, [[max(a.option_strings, key=len), bool(a.help)] for a in own]
    for action in subs:
        for key, sub in action.choices.items():
            yield from walk(sub, f"{name} {key}")
print(json.dumps(dict(walk(build_parser(), "katgym"))))
"""


@dataclass
class Figures:
    """What is counted, and for each count the places behind it."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, count: int, places: Iterable[str] = ()) -> None:
        """Keep one figure."""
        self.counts[name] = count
        self.places[name] = list(places)


def main() -> int:
    """Print the figures; with --check fail where one that has to be 0 is not."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repo", type=Path, default=Path(__file__).resolve().parents[1],
                        help="checkout to look at (default: this one)")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help=f"exit 1 if there are {' or '.join(NONE_ALLOWED)}")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--list", metavar="FIGURE", help="print what stands behind one figure")
    args = parser.parse_args()
    figures = measure(args.repo)
    if args.list is not None:
        if args.list not in figures.places:
            parser.error(f"unknown figure {args.list!r}; there are {', '.join(figures.counts)}")
        print("\n".join(figures.places[args.list]))
        return 0
    if args.json:
        print(json.dumps(figures.counts, indent=2))
        return 0
    for name, count in figures.counts.items():
        print(f"{name:24}{count:>10,}")
    wrong = [name for name in NONE_ALLOWED if figures.counts[name]]
    for name in wrong:
        print(f"\n{name}, of which there may be none:", *figures.places[name], sep="\n  ")
    return int(args.check and bool(wrong))


def measure(repo: Path) -> Figures:
    """Return every figure of a checkout."""
    figures = Figures()
    sources = {path: (repo / path).read_text("utf-8") for path in _tracked(repo)}
    for name, folder in PRODUCT.items():
        lines = sum(t.count("\n") for p, t in sources.items() if p.startswith(folder + "/"))
        figures.add(f"lines_{name}", lines)
    figures.add("lines", sum(text.count("\n") for text in sources.values()))
    figures.add("modules", len(sources), sources)
    trees = {path: ast.parse(text) for path, text in sources.items()}
    for name, circles in (("circles", find_circles(trees)), ("room_circles", room_circles(trees))):
        figures.add(name, len(circles), (" <-> ".join(circle) for circle in circles))
    _measure_options(figures, repo)
    return figures


def _tracked(repo: Path) -> list[str]:
    """Return the product's Python files, as Git knows them, relative to `repo`."""
    command = ["git", "-C", str(repo), "ls-files", "--", *(f"{d}/*.py" for d in PRODUCT.values())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    # Not the product's: plugins' tests, and data that looks like a package (the toy repository
    # that tasks are made from, Harbor's example tasks).
    left_out = re.compile("/(tests|toy|example)/")
    return sorted(p for p in listed if p and not left_out.search(p) and (repo / p).is_file())


def find_circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the circles of imports: sets of modules that reach one another, each sorted.

    trees: path -> module. Every import counts, also below TYPE_CHECKING and within functions. A
    package's `__init__` counts where it is imported itself, not for what lies below it.
    """
    return _circles(_arrows(trees))


def room_circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the circles of rooms: folders whose modules import one another's, each set sorted."""
    rooms = {_module_name(path): _room(path) for path in trees}
    arrows: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for name, imported in _arrows(trees).items():
        arrows[rooms[name]] |= {rooms[module] for module in imported} - {rooms[name]}
    return _circles(arrows)


def _circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    return sorted(sorted(group) for group in _components(arrows) if len(group) > 1)


def _arrows(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each module, those of the product that it imports."""
    modules = {_module_name(path): tree for path, tree in trees.items()}
    return {name: set(_imports(name, tree, modules)) for name, tree in modules.items()}


def _parts(path: str) -> tuple[str, ...]:
    parts = Path(path).with_suffix("").parts
    return parts[next(i for i, p in enumerate(parts) if p.startswith("katgym") and "-" not in p) :]


def _room(path: str) -> str:
    """Return the folder below its package that a module is in; one in no folder is its own room."""
    parts = _parts(path)
    return ".".join(parts[:2]) if len(parts) > 2 else _module_name(path)


def _module_name(path: str) -> str:
    named = _parts(path)
    return ".".join(named[:-1] if named[-1] == "__init__" else named)


def _imports(name: str, tree: ast.Module, modules: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from package import module` reaches the module; any other name reaches the package.
            both = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
            found = [inner if inner in modules else outer for inner, outer in both]
        else:
            continue
        yield from (module for module in found if module in modules and module != name)


def _components(arrows: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected components (Tarjan 1972, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    for root in arrows:
        if root in index:
            continue
        work = [(root, iter(sorted(arrows[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        waiting.add(root)
        while work:
            node, following = work[-1]
            child = next(following, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group = set(stack[at:])
                    del stack[at:]
                    waiting -= group
                    yield group
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                waiting.add(child)
                work.append((child, iter(sorted(arrows[child]))))
            elif child in waiting:
                low[node] = min(low[node], index[child])


def _measure_options(figures: Figures, repo: Path) -> None:
    """Commands and options, as the checkout's own parser knows them."""
    paths = [
        repo,
        *(repo / Path(d).parent for d in PRODUCT.values()),
        *(repo / "plugins").glob("*"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_OF_OPTIONS],
        env=environment, cwd=repo, capture_output=True, text=True, check=True,
    )  # fmt: skip
    commands: dict[str, list[tuple[str, bool]]] = json.loads(done.stdout)
    options = [(command, name, has) for command, own in commands.items() for name, has in own]
    figures.add("commands", len(commands), commands)
    figures.add("options", len(options), (f"{command} {name}" for command, name, _ in options))
    names = Counter(name for _, name, _ in options)
    figures.add("options_distinct", len(names), (f"{name} {n}" for name, n in names.most_common()))
    bare = [f"{command} {name}" for command, name, has in options if not has]
    figures.add("options_without_help", len(bare), bare)


if __name__ == "__main__":
    raise SystemExit(main())
