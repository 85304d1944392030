"""A new Python environment that sees this one's packages: pip installs into it without network."""

from __future__ import annotations

import site
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIP = "pip install --no-build-isolation --no-deps --no-index --disable-pip-version-check"
"""Installs what needs nothing that is not there."""


def make_environment(folder: Path) -> Path:
    """Make an environment in a folder and return its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    # addsitedir, unlike a bare path, also follows the .pth file of katgym's editable install.
    lines = [f"import site; site.addsitedir({p!r})" for p in site.getsitepackages()]
    lines += [str(ROOT), str(ROOT / "envs"), str(ROOT / "trainer"), str(ROOT / "kernels")]
    (packages / "site-packages" / "outer.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"
