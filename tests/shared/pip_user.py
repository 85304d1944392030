"""A user who has katgym from a wheel: a virtual environment outside the repository.

The wheel is built and unpacked there; packages of others are those of the tests' own environment,
by symbolic links, so that neither the repository nor its editable plugins are on the path. Not
here: what such a user runs (`page_blocks.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 3600
"""Wall seconds of one command, on a machine that others use, too."""
SCRIPT = """#!{python}
import sys
from katgym.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipUser:
    """Runs scripts with an installed katgym and nothing of the repository."""

    home: Path
    """Holds the virtual environment, and is the folder that scripts run below."""

    @classmethod
    def make(cls, home: Path) -> PipUser:
        """Build the wheel and install it."""
        user = cls(home=home)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        venv.create(home / "venv", symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = home / "venv" / "lib" / version / "site-packages"
        (wheel,) = home.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(packages)
        others = home / "others"
        others.mkdir()
        folders = [Path(name) for name in sys.path if Path(name).name == "site-packages"]
        for path in (path for folder in folders for path in folder.iterdir()):
            link = others / path.name
            if "katgym" not in path.name and path.suffix != ".pth" and not link.is_symlink():
                link.symlink_to(path)
        (packages / "others.pth").write_text(f"{others}\n")
        script = home / "venv" / "bin" / "katgym"
        script.write_text(SCRIPT.format(python=home / "venv" / "bin" / "python"))
        script.chmod(0o755)
        return user

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables of its shell."""
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "KATGYM_PLUGINS")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**kept, "PATH": f"{self.home / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder below `home`; standard error is part of what it prints."""
        return subprocess.run(
            command, cwd=folder, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
