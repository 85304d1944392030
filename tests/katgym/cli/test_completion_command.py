"""`katgym completion`: scripts that shells take and that know all commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.cli.environments.completion_command import SHELLS
from katgym.cli.main import main

BASH = """
source "$0"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_katgym
echo "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'katgym[completion]'")
    assert main(["completion", "bash"]) == 0
    file = tmp_path / "katgym.bash"
    file.write_text(capsys.readouterr().out)
    return file


def test_bash_completes_commands_subcommands_options_and_choices(script: Path) -> None:
    for words, expected in {
        "katgym ev": "eval",
        "katgym train rf": "rft",
        "katgym eval x --pol": "--policy",
        "katgym new pl": "plugin",
    }.items():
        command = ["bash", "-c", BASH, str(script), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected], words


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_its_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'katgym[completion]'")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    file = tmp_path / "script"
    file.write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", file], check=True)


def test_without_its_package_the_command_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'katgym[completion]'" in capsys.readouterr().err
