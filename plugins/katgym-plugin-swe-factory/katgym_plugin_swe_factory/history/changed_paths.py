"""Sorts the files a pull request changes into tests, product, and the rest.

By whole names of folders and files: `contest.py` is no test. Not here: what the changes are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_TEST_FOLDERS = frozenset({"tests", "test", "testing", "unit_tests", "test_data", "testdata"})
_TEST_MODULE = re.compile(r"test_[^/]*\.py|[^/]*_test\.py|tests?\.py|conftest\.py")
_DOCUMENT_FOLDERS = frozenset({"doc", "docs", "changes", "changelog.d", "newsfragments", ".github"})
_DOCUMENT = re.compile(
    r".*\.(md|rst|adoc)|(changelog|changes|history|news|authors|license|copying|readme)(\.txt)?",
    re.I,
)
_CODE = re.compile(
    r"(?i).*\.(py|pyi|pyx|pxd|c|h|cc|cpp|hpp|rs|go|js|jsx|ts|tsx|java|kt|rb|php|cs|swift|scala|sh)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPaths:
    """The changed files of a pull request by kind, each sorted."""

    tests: tuple[str, ...] = ()
    """Test modules, their data and conftest files."""
    product: tuple[str, ...] = ()
    """Everything else that is code."""
    others: tuple[str, ...] = ()
    """Settings and data."""
    documents: tuple[str, ...] = ()
    """What is written for people."""

    @property
    def num_files(self) -> int:
        """Return how many files are changed."""
        return len(self.tests) + len(self.product) + len(self.others) + len(self.documents)

    @property
    def python_share(self) -> float:
        """Share of the product's changed files that are Python or its stubs; 0 without any."""
        python = [path for path in self.product if path.endswith((".py", ".pyi"))]
        return len(python) / len(self.product) if self.product else 0.0


def sort_paths(paths: Iterable[str]) -> ChangedPaths:
    """Return the paths by kind."""
    kinds: dict[str, list[str]] = {"tests": [], "product": [], "others": [], "documents": []}
    for path in sorted(paths):
        if is_test_path(path):
            kinds["tests"].append(path)
        elif is_document(path):
            kinds["documents"].append(path)
        elif _CODE.fullmatch(path):
            kinds["product"].append(path)
        else:
            kinds["others"].append(path)
    return ChangedPaths(**{kind: tuple(found) for kind, found in kinds.items()})


def is_test_path(path: str) -> bool:
    """Return whether a file belongs to the tests: by a folder of tests, or the module's name."""
    *folders, name = path.split("/")
    return any(f.lower() in _TEST_FOLDERS for f in folders) or bool(_TEST_MODULE.fullmatch(name))


def is_test_module(path: str) -> bool:
    """Return whether pytest collects a file by its name: a test module, no conftest."""
    name = path.rpartition("/")[2]
    return bool(_TEST_MODULE.fullmatch(name)) and name != "conftest.py"


def is_document(path: str) -> bool:
    """Return whether a file is written for people."""
    *folders, name = path.split("/")
    return any(f.lower() in _DOCUMENT_FOLDERS for f in folders) or bool(_DOCUMENT.fullmatch(name))
