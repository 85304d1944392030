"""`katgym new`: files that run as they are written, and names that are refused."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from new_environment import ROOT, make_environment

from katgym.cli.environments.new_command import PARTS, project_files
from katgym.cli.main import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_project_has_its_name_everywhere_and_nothing_of_the_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in PARTS:
        assert main(["new", kind, "word_games", "--out", kind]) == 0
        told = capsys.readouterr().out.partition("\n\n")[0].splitlines()
        folder = tmp_path / kind
        found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
        assert told == sorted(f"{kind}/{name}" for name in found)
        assert {"Makefile", "README.md", ".gitignore", ".github/workflows/test.yml"} < found
        assert any(name.endswith("word_games.py") for name in found)
        for name in found:
            text = f"{name}\n{(folder / name).read_text()}".lower()
            assert "my_domain" not in text and "my-domain" not in text and "mydomain" not in text
    project = tomllib.loads((tmp_path / "plugin/pyproject.toml").read_text())["project"]
    assert project["name"] == "katgym-plugin-word-games"
    assert project["entry-points"] == {"katgym": {"word_games": "katgym_plugin_word_games.plugin"}}
    source = tmp_path / "plugin/src/katgym_plugin_word_games"
    assert '"word_games/WordGames-v0"' in (source / "plugin.py").read_text()
    assert "class WordGames(" in (source / "word_games.py").read_text()
    assert main(["new", "env", "word_games"]) == 0
    assert (tmp_path / "word_games" / "Makefile").is_file()


def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("kept")
    for name, told in {
        "Word-Games": "Did you mean 'word_games'?",
        "7": "a name is of lower-case letters",
        "": "a name is of lower-case letters",
        "../up": "Did you mean 'up'?",
        "class": "'class' is taken",
        "json": "'json' is taken",
        "numpy": "'numpy' is taken",
        "there": "'there' is there already",
    }.items():
        with subtests.test(name=name):
            assert main(["new", "env", name]) == 2
            assert told in " ".join(capsys.readouterr().err.split())
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["there", "there/mine"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS)
def test_a_project_passes_its_own_tests(kind: str, tmp_path: Path) -> None:
    assert main(["new", kind, "word_games", "--out", "project"]) == 0
    python = make_environment(tmp_path / "environment")
    left_out = ("PYTHONPATH", "KATGYM_PLUGINS", "PYTEST_ADDOPTS", "MAKEFLAGS")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    environment |= {
        "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    (tmp_path / "project" / "runs").mkdir()  # what an evaluation leaves beside the package
    done = subprocess.run(
        ["make", "test", f"PYTHON={python}"],
        cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    num = 4 if kind == "plugin" else 3
    assert f"{num} passed" in done.stdout


def test_the_guide_shows_the_files_that_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "write-a-plugin.md").read_text()
    shown = re.findall(r"```\w*\n(.*?)```", page, re.S)
    assert main(["new", "plugin", "riddles"]) == 0
    assert shown[0] == f"$ katgym new plugin riddles\n{capsys.readouterr().out}"
    files = "\n".join(dict(project_files("plugin", "riddles")).values())
    assert len(shown) == 4 and all(text in files for text in shown[2:])
