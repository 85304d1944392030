"""What `mkdocs build` does beside Markdown: pages of reference, linked sources, `llms.txt`.

1. Pages `api/*.md` are made: commands of their parsers, names of `__all__` for mkdocstrings.
2. What pages link to outside docs/, such as a source file, becomes a text file of the site.
3. `llms.txt` lists all pages for coding agents, each as Markdown beside its HTML.

Not here: the list of pages (`mkdocs.yml`).
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

from katgym.cli.main import build_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_ENTRY = re.compile(r"^- \[[^\]]*\]\(([^)]*)\): (.*)\.$", re.M)
_EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n(?=    ))+)", re.M)
_NAMES = {
    "katgym": ("The package `katgym`", "katgym/__init__.py"),
    "trainer": ("The package `katgym_trainer`", "trainer/katgym_trainer/__init__.py"),
    "kernels": ("The package `katgym_kernels`", "kernels/katgym_kernels/__init__.py"),
}
_LEFT_OUT = ("__version__", "testing")


class CodeExamples(griffe.Extension):  # type: ignore[misc]  # griffe may not be installed
    """Show what stands under `Example:` in a docstring as code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence the example of an object's docstring."""
        if obj.docstring is not None:
            fenced = r"Example:\n    ```python\n\1    ```\n"
            obj.docstring.value = _EXAMPLE.sub(fenced, obj.docstring.value + "\n").rstrip()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the sources that pages link to."""
    for path, text in {**api_pages(), "api/commands.md": commands_page()}.items():
        files.append(File.generated(config, path, content=text))
    linked = {
        target
        for file in files.documentation_pages()
        if file.abs_src_path
        for _, target in outward_links(Path(file.abs_src_path))
    }
    for target in sorted(linked):
        place = f"source/{target.relative_to(ROOT)}.txt"
        files.append(File.generated(config, place, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ to the sources' copies; those to folders become plain text."""
    if page.file.abs_src_path is None:
        return markdown
    source = Path(page.file.abs_src_path)
    for match, target in list(outward_links(source)):
        above = os.path.relpath("source", Path(page.file.src_uri).parent)
        markdown = markdown.replace(match, f"]({above}/{target.relative_to(ROOT)}.txt)")
    return re.sub(
        r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)",
        lambda m: m[1] if is_outward_folder(source.parent / m[2]) else m[0],
        markdown,
    )


def on_post_build(config: Any) -> None:
    """Write `llms.txt`, and each page's Markdown beside it."""
    site = Path(config["site_dir"])
    told = dict(_ENTRY.findall((DOCS / "README.md").read_text()))
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for title, paths in sections(config["nav"]):
        lines += [f"## {title}", ""]
        for path in paths:
            text = (DOCS / path).read_text() if (DOCS / path).exists() else api_text(path)
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
            summary = told.get(path) or summary_of(text)
            lines.append(f"- [{title_of(text)}]({path}){f': {summary}' if summary else ''}")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines))


def outward_links(page: Path) -> Iterator[tuple[str, Path]]:
    """Yield the links of a page to files outside docs/, as they stand there, with the file."""
    for match in _LINK.finditer(page.read_text()):
        target = (page.parent / match["target"]).resolve()
        is_outside = target.is_relative_to(ROOT) and not target.is_relative_to(DOCS)
        if not match["target"].startswith("http") and is_outside and target.is_file():
            yield match[0], target


def is_outward_folder(path: Path) -> bool:
    """Return whether a path is a folder outside docs/."""
    found = path.resolve()
    return found.is_dir() and not found.is_relative_to(DOCS)


def api_pages() -> dict[str, str]:
    """Return the pages of public names, which mkdocstrings fills."""
    pages = {}
    for page, (title, place) in _NAMES.items():
        module = Path(place).parent.name
        names = [name for name in public_names(ROOT / place) if name not in _LEFT_OUT]
        text = "\n".join(f"::: {module}.{name}\n" for name in names)
        pages[f"api/{page}.md"] = f"# {title}\n\nIts public names.\n\n{text}"
    for page, title, module in (
        ("hooks", "Hooks of plugins", "katgym.hookspecs"),
        ("testing", "Doubles for tests", "katgym.testing"),
    ):
        pages[f"api/{page}.md"] = f"# {title}\n\nModule `{module}`.\n\n::: {module}\n"
    return pages


def public_names(module: Path) -> list[str]:
    """Return the names of a module's `__all__`."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise ValueError(f"{module} has no __all__")


def commands_page() -> str:
    """Return the help of every command as a page."""
    parts = ["# Commands", "", "What `katgym COMMAND --help` prints.", ""]
    os.environ["COLUMNS"] = "100"
    for parser in parsers(build_parser()):
        parts += [f"## {parser.prog}", "", "```", parser.format_help().rstrip(), "```", ""]
    return "\n".join(parts)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


def sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the titles of the list of pages with their pages."""
    yield "Start", [item for item in nav if isinstance(item, str)]
    for item in nav:
        if isinstance(item, dict):
            yield from item.items()


def api_text(path: str) -> str:
    """Return the Markdown of a page that was made."""
    return commands_page() if path == "api/commands.md" else api_pages()[path]


def title_of(text: str) -> str:
    """Return a page's heading."""
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def summary_of(text: str) -> str:
    """Return the first sentence of a page's prose, without links."""
    prose = re.sub(r"```.*?```", "", text.partition("\n")[2], flags=re.S)
    first = next((p for p in prose.split("\n\n") if re.match(r"\s*[A-Z`]", p)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")
