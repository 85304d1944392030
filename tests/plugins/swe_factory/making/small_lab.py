"""A lab for a package of one module that a test writes, in local sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from katgym.sandbox import SandboxBackend
from katgym.sandbox.backends import backend
from katgym_envs.swe.packages import KnownPackage, SourceTree
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.package_study import PackageStudy, study_package

T = TypeVar("T")
Work = Callable[[PackageLab, PackageStudy], Awaitable[T]]


def in_lab(
    name: str,
    product: str,
    tests: dict[str, str],
    work: Work[T],
    sandboxes: SandboxBackend | None = None,
) -> T:
    """Study a package `name`, then return `await work(lab, study)`.

    tests: path -> text. sandboxes: None takes local ones.
    """
    package = KnownPackage(
        name=name,
        version="1.0",
        source=(f"{name}.py",),
        tests=("tests/test_*.py",),
        test_roots=("tests",),
    )
    files = {f"{name}.py": product, **tests}
    tree = SourceTree(package=package, files={path: text.encode() for path, text in files.items()})

    async def go() -> T:
        async with (
            aclosing(sandboxes or backend("local")) as chosen,
            PackageLab(tree, chosen, num_sandboxes=2) as lab,
        ):
            return await work(lab, await study_package(lab))

    return asyncio.run(go())
