"""The table of known packages, `known.toml`: what to fetch, what is product, what are tests.

Not here: fetching (`sdist.py`), guessing all this for another package (`layout.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

_TABLE = Path(__file__).with_name("known.toml")
PYTEST = "pytest==9.2.0"


class KnownPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One package tasks can be made from.

    Example:
        KnownPackage(name="xmltodict", version="1.0.4", sha256="6d94...", license="MIT",
                     split="test", source=("xmltodict.py",), tests=("tests/test_*.py",),
                     test_roots=("tests",))
    """

    name: str
    version: str
    sha256: str | None = None
    """Of the sdist; None: not checked."""
    license: str = ""
    split: str = "train"
    source: tuple[str, ...]
    """Folders and files that may get a bug, less what is in `test_roots`."""
    tests: tuple[str, ...]
    """Patterns of test modules."""
    test_roots: tuple[str, ...]
    """Folders and files that belong to the tests: modules, conftest files, data."""
    python_path: tuple[str, ...] = (".",)
    """Folders that are imported from."""
    requirements: tuple[str, ...] = ()
    """Pinned, besides pytest."""
    excluded: dict[str, str] = {}
    """Test module -> why it is left out."""

    @property
    def all_requirements(self) -> tuple[str, ...]:
        """Return everything the tests' venv holds."""
        return (PYTEST, *self.requirements)


@lru_cache(maxsize=1)
def list_packages() -> Mapping[str, KnownPackage]:
    """Return the known packages by name, in the table's order."""
    table = tomllib.loads(_TABLE.read_text("utf-8"))
    return {
        name: msgspec.convert({"name": name, **entry}, KnownPackage)
        for name, entry in table.items()
    }
