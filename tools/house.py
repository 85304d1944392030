"""Figures of the house: lines, rooms, circles of imports, names, functions, options; their budget.

    python tools/house.py                    # a table of every figure beside its budget
    python tools/house.py --check            # exit 1 if one is over its budget (in `make check`)
    python tools/house.py --repo OLD --json  # another checkout's figures, for a comparison
    python tools/house.py --list circles     # what stands behind a figure

Only the source is read, but for the options, which the parser of the checkout itself tells. Product
is the four packages and the plugins. A budget is raised in `tools/house_budget.toml` alone, by a
commit whose message says what the lines bought. Not here: layers (`lint-imports`, pyproject.toml).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
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

MAX_FILES = 12
"""Python files of a folder, `__init__.py` included, before its README owes a reason on its top."""

# Verbs whose participle does not end in "ed", and words in "ed" that are none.
IRREGULAR = """
    begun bound built caught chosen done drawn driven fallen felt forgotten fought found given gone
    grown held hidden kept known laid led left lent lost made meant met paid said seen sent shown
    spent spoken stood stuck sunk taken taught thought thrown told torn understood woken won worn
    written
"""
NOT_PARTICIPLES = "bed embed exceed feed need proceed read red seed shed speed succeed weed"

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


@dataclass(frozen=True)
class Function:
    """One function or method: where it stands, its lines from `def` to its end, its name."""

    where: str
    name: str
    num_lines: int
    is_property: bool


@dataclass
class Figures:
    """What is counted, and for each count the places behind it."""

    counts: dict[str, float] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, count: float, places: Iterable[str] = ()) -> None:
        """Keep one figure."""
        self.counts[name] = count
        self.places[name] = list(places)


def main() -> int:
    """Print the figures; with --check compare them with the budget."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repo", type=Path, default=Path(__file__).resolve().parents[1],
                        help="checkout to look at (default: this one)")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="exit 1 where a figure is over budget")
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
    budget = tomllib.loads(Path(__file__).with_name("house_budget.toml").read_text("utf-8"))
    over = []
    for name, count in figures.counts.items():
        limit = budget.get(name)
        is_over = limit is not None and count > limit
        over += [name] * is_over
        shown = "" if limit is None else f"{limit:>10,}"
        print(f"{name:32}{count:>10,}{shown}{'  OVER BUDGET' if is_over else ''}")
    if missing := budget.keys() - figures.counts.keys():
        print(f"house_budget.toml: no such figures: {', '.join(sorted(missing))}")
    if over and args.check:
        print(f"over budget: {', '.join(over)}; `python tools/house.py --list NAME` shows where")
    return int(args.check and bool(over or missing))


def measure(repo: Path) -> Figures:
    """Return every figure of a checkout."""
    figures = Figures()
    sources = {path: (repo / path).read_text("utf-8") for path in _tracked(repo)}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    _measure_size(figures, repo, sources)
    _measure_functions(figures, trees)
    _measure_names(figures, trees)
    circles = find_circles(trees)
    figures.add("circles", len(circles), (" <-> ".join(circle) for circle in circles))
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


def _measure_size(figures: Figures, repo: Path, sources: dict[str, str]) -> None:
    """Lines for each package, loose modules, folders with many files, long modules."""
    for name, folder in PRODUCT.items():
        lines = sum(t.count("\n") for p, t in sources.items() if p.startswith(folder + "/"))
        figures.add(f"lines_{name}", lines)
    figures.add("lines", sum(text.count("\n") for text in sources.values()))
    loose = [p for p in sources if re.fullmatch(r"katgym/(?!__)\w+\.py", p)]
    figures.add("loose_modules", len(loose), loose)
    sizes = Counter(str(Path(path).parent) for path in sources)
    wide = {d: n for d, n in sizes.items() if n > MAX_FILES and not _gives_reason(repo / d, n)}
    figures.add("wide_folders", len(wide), (f"{d} {n}" for d, n in sorted(wide.items())))
    long = {p: t.count("\n") for p, t in sources.items() if t.count("\n") > 400}
    figures.add("modules_over_400", len(long), (f"{p} {n}" for p, n in long.items()))


def _gives_reason(folder: Path, num: int) -> bool:
    """Return whether a folder's README says on its top why it has so many files.

    The top is what stands before the first list; the reason names the number: "14 files: ...".
    """
    readme = folder / "README.md"
    top = readme.read_text("utf-8").split("\n- ")[0] if readme.is_file() else ""
    return re.search(rf"\b{num} (files|modules)\b", top) is not None


def _functions(path: str, tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(d) for d in node.decorator_list)
            is_property = re.search(r"property|setter", decorators) is not None
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(f"{path}:{node.lineno}", node.name, length, is_property)


def _measure_functions(figures: Figures, trees: dict[str, ast.Module]) -> None:
    """Lengths, and private functions that one place alone refers to."""
    functions = [f for path, tree in trees.items() for f in _functions(path, tree)]
    lengths = sorted(f.num_lines for f in functions)
    figures.add("functions", len(functions))
    figures.add("function_lines_p90", lengths[int(0.9 * len(lengths))])
    longest = sorted(functions, key=lambda f: -f.num_lines)[:20]
    figures.add(
        "function_lines_max", lengths[-1], (f"{f.where} {f.name} {f.num_lines}" for f in longest)
    )
    once = []
    for path, tree in trees.items():
        uses = Counter(_references(tree))
        once += [
            f
            for f in _functions(path, tree)
            if f.name.startswith("_") and not f.name.endswith("__") and uses[f.name] == 1
        ]
    figures.add(
        "one_caller_percent",
        round(100 * len(once) / len(functions), 1),
        (f"{f.where} {f.name} {f.num_lines}" for f in once),
    )


def _references(tree: ast.Module) -> Iterator[str]:
    """Yield every name and attribute that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def is_participle(name: str) -> bool:
    """Return whether a function's name begins with a past participle (`_answered`, `kept_rows`)."""
    word = name.lstrip("_").split("_")[0]
    if word in NOT_PARTICIPLES.split():
        return False
    return word in IRREGULAR.split() or (word.endswith("ed") and len(word) > 3)


def _measure_names(figures: Figures, trees: dict[str, ast.Module]) -> None:
    """Functions named by participles, headers that are riddles, classes with one name."""
    verbs = [
        f
        for path, tree in trees.items()
        for f in _functions(path, tree)
        if not f.is_property and not f.name.endswith("__")
    ]
    named = [f for f in verbs if is_participle(f.name)]
    share = round(100 * len(named) / len(verbs), 1)
    figures.add("participle_percent", share, (f"{f.where} {f.name}" for f in named))
    riddles = []
    for path, tree in trees.items():
        header = (ast.get_docstring(tree) or "").split("\n")[0]
        if re.match(r"(What|Which|Who|Whose|How|Where|When|Why)\b", header):
            riddles.append(f"{path} {header}")
    figures.add("riddle_headers", len(riddles), riddles)
    classes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path)
    twice = {name: paths for name, paths in classes.items() if len(paths) > 1}
    shown = (f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items()))
    figures.add("classes_named_alike", len(twice), shown)


def find_circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the circles of imports: sets of modules that reach one another, each sorted.

    trees: path -> module. Every import counts, also below TYPE_CHECKING and within functions. A
    package's `__init__` counts where it is imported itself, not for what lies below it.
    """
    modules = {_module_name(path): tree for path, tree in trees.items()}
    arrows = {name: set(_imports(name, tree, modules)) for name, tree in modules.items()}
    return sorted(sorted(group) for group in _components(arrows) if len(group) > 1)


def _module_name(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    start = next(i for i, part in enumerate(parts) if part.startswith("katgym") and "-" not in part)
    named = parts[start:]
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
