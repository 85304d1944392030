"""A package as files, told apart into product and tests; also the toy repository of our own.

Not here: mutating it (`mutation/`), running its tests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from katgym.errors import UsageError
from katgym_envs.swe.packages.catalogue import KnownPackage, list_packages
from katgym_envs.swe.packages.layout import guess_package, is_below
from katgym_envs.swe.packages.sdist import fetch_sdist
from katgym_envs.swe.packages.sdist_archive import read_sdist

TOY = "parcelkit"
_TOY_FOLDER = Path(__file__).with_name("toy")
_TOY_SUFFIX = ".txt"  # no linter, type checker or test runner takes them for katgym's own


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """The files of one package and what they are for.

    Example:
        SourceTree(package=KnownPackage(name="inflection", ...),
                   files={"inflection/__init__.py": b"...", "test_inflection.py": b"..."})
    """

    package: KnownPackage
    files: Mapping[str, bytes]
    """Path -> content, sorted."""

    @cached_property
    def product(self) -> tuple[str, ...]:
        """Return the Python modules that may get a bug."""
        roots, tests = self.package.source, self.package.test_roots
        return tuple(
            path
            for path in self.files
            if path.endswith(".py") and is_below(path, roots) and not is_below(path, tests)
        )

    @cached_property
    def test_modules(self) -> tuple[str, ...]:
        """Return the test modules, less the excluded ones."""
        escaped = (re.escape(pattern) for pattern in self.package.tests)
        patterns = [
            re.compile(p.replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")) for p in escaped
        ]
        return tuple(
            path
            for path in self.files
            if path not in self.package.excluded and any(p.fullmatch(path) for p in patterns)
        )

    @cached_property
    def test_files(self) -> tuple[str, ...]:
        """Return everything that belongs to the tests, less the excluded modules."""
        return tuple(
            path
            for path in self.files
            if path not in self.package.excluded and is_below(path, self.package.test_roots)
        )

    @cached_property
    def sha256(self) -> str:
        """Return a digest of all paths and contents."""
        digest = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            for part in (path.encode("utf-8", "surrogateescape"), content):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)
        return digest.hexdigest()


def open_package(
    spec: str, *, cache_dir: Path | None = None, sha256: str | None = None
) -> SourceTree:
    """Return the files of `NAME`, `NAME==VERSION` or the toy repository, fetched on first use.

    A version that is not in the table is laid out by guessing; then `NAME==VERSION` is needed.
    Raises `UsageError` and `InfrastructureError` like `fetch_sdist`.
    """
    name, _, version = (part.strip() for part in spec.partition("=="))
    if name == TOY:
        return open_toy()
    known = list_packages().get(name.lower())
    if known is not None and version in ("", known.version):
        sdist = fetch_sdist(known.name, known.version, sha256=known.sha256, cache_dir=cache_dir)
        return SourceTree(package=known, files=read_sdist(sdist.path))
    if not version:
        known_names = ", ".join(list_packages())
        raise UsageError(
            f"package {name!r} is not in the table; name a version as in '{name}==1.0'. "
            f"In the table: {known_names}"
        )
    sdist = fetch_sdist(name, version, sha256=sha256, cache_dir=cache_dir)
    files = read_sdist(sdist.path)
    return SourceTree(package=guess_package(sdist, files), files=files)


def open_toy() -> SourceTree:
    """Return the toy repository, which comes with katgym and needs no network."""
    files = {
        str(path.relative_to(_TOY_FOLDER).as_posix()).removesuffix(_TOY_SUFFIX): path.read_bytes()
        for path in sorted(_TOY_FOLDER.rglob(f"*{_TOY_SUFFIX}"))
    }
    package = KnownPackage(
        name=TOY,
        version="1.0.0",
        license="Apache-2.0",
        source=(TOY,),
        tests=("tests/test_*.py",),
        test_roots=("tests",),
    )
    return SourceTree(package=package, files=dict(sorted(files.items())))
