"""Begin an env, a plugin or a training run: a folder of files that run, with tests.

`env` is a file with an env; `plugin` a distribution that registers one; `train` an env with the
TOML that trains a tiny model on it, on a CPU, in a few minutes. Each has a Makefile and a CI file.

example:
  katgym new env riddles
  katgym new plugin riddles
  katgym new train riddles --out work/riddles
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError

PARTS = {
    "env": {"env": ""},
    "plugin": {
        "env/dot-github": ".github",
        "env/dot-gitignore": ".gitignore",
        "env/my_domain.py": "src/katgym_plugin_my_domain/my_domain.py",
        "plugin": "",
    },
    "train": {"env": "", "train": ""},
}
"""Kind -> template files or folders, and where each goes; a later one replaces what is there."""
NEXT = {
    "env": ("make test", "katgym play {name}.py:{title}"),
    "plugin": ("make test", "katgym plugins", "katgym play {name}/{title}-v0"),
    "train": ("make test", "make train", "katgym view runs/train --html"),
}
"""Kind -> the commands to go on with."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("kind", metavar="KIND", choices=list(PARTS), help=" or ".join(PARTS))
    parser.add_argument("name", metavar="NAME", help="of the domain, such as riddles")
    add_option(parser, "out", "a new folder (NAME, of a plugin katgym-plugin-NAME)")


def run(args: argparse.Namespace) -> int:
    """Write the files, and print them and what to do next."""
    name = check_name(args.name)
    default = f"katgym-plugin-{name.replace('_', '-')}" if args.kind == "plugin" else name
    folder = args.out or Path(default)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} is there already; name a new folder with --out")
    files = dict(project_files(args.kind, name))
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    for place in sorted(files):
        console.stdout.print(str(folder / place), soft_wrap=True)
    steps = [step.format(name=name, title=title_of(name)) for step in NEXT[args.kind]]
    text = " && ".join([f"cd {folder}", *steps])
    console.stdout.print(f"\nnext: {text}", soft_wrap=True)
    return 0


def check_name(name: str) -> str:
    """Return a name that a module and a plugin can have; `UsageError` for another."""
    if not _NAME.fullmatch(name):
        near = re.sub(r"\W+", "_", name.lower()).strip("_0123456789")
        hint = f". Did you mean {near!r}?" if _NAME.fullmatch(near) else ""
        raise UsageError(
            "a name is of lower-case letters, digits and '_', such as 'riddles'; got"
            f" {name!r}{hint}"
        )
    found = importlib.util.find_spec(name)
    is_module = name in sys.stdlib_module_names or (found is not None and found.origin is not None)
    if keyword.iskeyword(name) or is_module or name in ("my_domain", "tests"):
        raise UsageError(f"{name!r} is taken, by Python or by a package that is installed")
    return name


def title_of(name: str) -> str:
    """Return the class's name: `word_games` -> `WordGames`."""
    return "".join(part.capitalize() for part in name.split("_"))


def project_files(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each file of a new project, and its text."""
    words = {"my_domain": name, "my-domain": name.replace("_", "-"), "MyDomain": title_of(name)}

    def fill(text: str) -> str:
        for word, replacement in words.items():
            text = text.replace(word, replacement)
        return text

    for part, place in PARTS[kind].items():
        for path, file in _files(resources.files("katgym.cli") / "templates" / part, place):
            yield fill(path), fill(file.read_text(encoding="utf-8"))


def _files(found: Traversable, place: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the files at or below a template with their paths; `dot-` stands for a dot."""
    if found.is_file():
        yield place, found
        return
    for item in sorted(found.iterdir(), key=lambda item: item.name):
        if item.name != "__pycache__":
            name = re.sub("^dot-", ".", item.name)
            yield from _files(item, f"{place}/{name}".lstrip("/"))
