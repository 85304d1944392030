"""Every subcommand: help with an example, JSON, exit codes."""

import io
import json
import re
import shutil
import subprocess
import sys

import pytest

from katgym.cli.environments import doctor_command
from katgym.cli.environments.completion_command import SHELLS
from katgym.cli.main import COMMANDS, main
from katgym.cli.rollouts import SUBCOMMANDS
from katgym.vllm_server.config import VllmServerConfig
from katgym.vllm_server.environment import environment_folder


def test_every_command_has_help_with_an_example(capsys):
    assert COMMANDS and SUBCOMMANDS
    for words in [[name] for name in COMMANDS] + [["rollouts", name] for name in SUBCOMMANDS]:
        assert main([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert re.search(rf"example:\n(.*\n)*  katgym {' '.join(words)}\b", shown), words


def test_without_a_command_all_are_listed_with_an_example(capsys):
    for words, listed in (([], "eval"), (["-v"], "eval"), (["rollouts"], "gc")):
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert f"    {listed} " in shown and "example:" in shown, words
    assert main(["--version"]) == 0


def test_what_a_command_does_not_take_is_told_with_its_own_usage(capsys):
    for words, told in (
        (["--num-tasks", "3"], "Did you mean '--tasks'?"),
        (["-n", "3", "--policy", "oracle"], "katgym eval takes no '-n'"),
    ):
        assert main(["eval", "katgym/Arithmetic-v1", *words]) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("usage: katgym eval ")
        assert told in shown.splitlines()[-1]


def test_envs_lists_the_built_in_domains_as_json(capsys):
    assert main(["envs", "--json"]) == 0
    envs = {env["id"]: env for env in json.loads(capsys.readouterr().out)}
    assert {
        "katgym/Arithmetic-v1",
        "katgym/Chess-v1",
        "katgym/MathProblems-v1",
        "katgym/OpenSpiel-v0",
        "katgym/TreasureHunt-v1",
    } <= set(envs)
    arithmetic = envs["katgym/Arithmetic-v1"]
    assert arithmetic["tools"] == ["calculator"]
    assert arithmetic["splits"] == ["train", "validation", "test"]
    assert arithmetic["plugin"] == "katgym.math"
    assert arithmetic["description"]
    # Other tests of this process may have registered envs of their own.
    built_in = {name: env["error"] for name, env in envs.items() if name.startswith("katgym/")}
    assert set(built_in.values()) == {None}, built_in


def test_envs_describes_one_and_suggests_for_a_typo(capsys):
    assert main(["envs", "katgym/Chess-v1"]) == 0
    assert "katgym/Chess-v1" in capsys.readouterr().out
    assert main(["envs", "katgym/Ches-v0"]) == 2
    assert "Did you mean 'katgym/Chess-v1'?" in capsys.readouterr().err


def test_plugins_lists_the_built_in_ones(capsys):
    assert main(["plugins", "--json"]) == 0
    found = {info["name"]: info for info in json.loads(capsys.readouterr().out)}
    assert found["katgym.math"]["status"] == "loaded"
    assert found["katgym.games"]["env_ids"]


def test_doctor_names_what_works_and_how_to_get_the_rest(capsys, monkeypatch):
    def fail(what):
        raise ValueError(f"no {what}")

    assert main(["doctor"]) == 0
    monkeypatch.setitem(doctor_command.CHECKS, "broken", fail)
    monkeypatch.setitem(doctor_command.CHECKS, "last", doctor_command.CHECKS["core"])
    capsys.readouterr()
    assert main(["doctor", "--json"]) == 0
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert findings.pop("broken")["detail"] == "ValueError: no broken"
    assert findings["core"]["is_working"] and findings["last"]["is_working"]
    assert all(f["is_working"] or f["fix"] or f["name"] == "GPU" for f in findings.values())


def test_doctor_tells_whether_vllm_was_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("KATGYM_CACHE", str(tmp_path))
    check = doctor_command.CHECKS["vLLM servers"]
    missing = check("vLLM servers")
    assert not missing.is_working and missing.fix.startswith("katgym vllm install --")
    folder = environment_folder(VllmServerConfig(model="any").resolved_device)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    assert not check("vLLM servers").is_working
    (folder / ".complete").touch()
    found = check("vLLM servers")
    assert found.is_working and str(folder) in found.detail


@pytest.mark.slow
def test_check_passes_for_a_built_in_env(capsys):
    assert main(["check", "katgym/Arithmetic-v1", "--tasks", "5"]) == 0
    out = capsys.readouterr().out
    assert "floors on test tasks" in out and "first option" in out and "failed" not in out


def test_play_takes_tool_calls_and_answers_from_standard_input(monkeypatch, capsys):
    moves = [
        '/tool calculator {"expression": "6*7"}',
        "/tool calculator",
        "/tool",
        "/send",
        "/oracle",
        "42",
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(moves) + "\n"))
    assert main(["play", "katgym/Arithmetic-v1?level=1", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "calculator: 42" in captured.out
    assert "reward:" in captured.out
    assert "a tool call has the form" in captured.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("/quit\n"))
    assert main(["play", "katgym/Arithmetic-v1"]) == 1
    assert "left before the end" in capsys.readouterr().out


def test_compare_view_and_leaderboard_read_runs(tmp_path, capsys):
    runs = []
    for policy in ("oracle", "noop"):
        runs.append(str(tmp_path / policy))
        options = ["--policy", policy, "--tasks", "2", "--out", runs[-1]]
        assert main(["eval", "katgym/TreasureHunt-v1", *options]) == 0
    capsys.readouterr()
    assert main(["compare", *runs, "--json"]) == 0
    assert "katgym/TreasureHunt-v1" in capsys.readouterr().out
    assert main(["view", runs[0], "--limit", "1"]) == 0
    assert "reward 1" in capsys.readouterr().out
    assert main(["leaderboard", *runs, "--out", str(tmp_path / "board")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    facts = ["1.000", "[1.000,", "1.000]", "0.000", "[0.000,", "0.000]"]
    assert ["facts_read", *facts] in rows
    written = {p.name for p in (tmp_path / "board").iterdir()}
    assert {"leaderboard.md", "leaderboard.html"} <= written
    assert "oracle" in (tmp_path / "board" / "leaderboard.md").read_text()
    assert main(["compare", runs[0], str(tmp_path)]) == 2
    assert "holds no lock.json" in capsys.readouterr().err


BASH = """
source "$0"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_katgym
echo "${COMPREPLY[@]}"
"""


def test_shells_read_their_script_and_bash_completes_all_words(capsys, tmp_path, subtests):
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'katgym[completion]'")
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
        with subtests.test(shell=shell):
            if shutil.which(shell) is None:
                pytest.skip(f"the shell {shell} is not installed")
            subprocess.run([shell, "-n", tmp_path / shell], check=True)
    for words, expected in {
        "katgym ev": "eval",
        "katgym train rf": "rft",
        "katgym eval x --pol": "--policy",
        "katgym new pl": "plugin",
    }.items():
        command = ["bash", "-c", BASH, str(tmp_path / "bash"), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected], words


def test_completion_names_the_package_that_it_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'katgym[completion]'" in capsys.readouterr().err
