"""Mistakes of a config are told before torch is imported."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

RL = '[model]\npath = "org/model"\n[[envs]]\nid = "katgym/Arithmetic-v1"\n'
SFT = '[model]\npath = "{path}"\n[data]\nteachers = ["runs/a"]\n[train]\n{train}\n'
FILES = {
    "syntax.toml": "[model\n",
    "key.toml": SFT.format(path="org/model", train="learn_rate = 1.0"),
    "nowhere.toml": SFT.format(path="./nowhere", train=""),
    "rl.toml": RL,
    "loss.toml": f"{RL}[train]\nloss = {{clip_hi = 0.3}}\n",
    "gspo.toml": f'{RL}[train]\nalgorithm = "gspx"\n',
}
CASES = {
    ("train", "sft", "missing.toml"): (2, "cannot read 'missing.toml'"),
    ("train", "rft", "syntax.toml"): (2, "'syntax.toml' is not TOML"),
    ("train", "sft", "key.toml"): (2, "'learn_rate'. Did you mean 'learning_rate'?"),
    ("train", "sft", "nowhere.toml"): (2, "[model]: there is no folder './nowhere'"),
    ("train", "sft", "rl.toml"): (2, "unknown section of rl.toml 'envs'"),
    ("train", "rl", "key.toml"): (2, "unknown section of key.toml 'data'"),
    ("train", "rl", "loss.toml"): (2, "no option 'clip_hi'. Did you mean 'clip_high'?"),
    ("train", "rl", "gspo.toml"): (2, "unknown algorithm 'gspx'. Did you mean 'gspo'"),
    ("train", "new-model", "file/x", "--envs", "katgym/Arithmetic-v1"): (1, "cannot write"),
    ("train", "new-model", "x", "--envs", "katgym/Arithmtic-v1"): (2, "'katgym/Arithmetic-v1'?"),
    ("cluster", "plan", "missing.toml"): (2, "cannot read 'missing.toml'"),
    ("cluster", "plan", "gspo.toml"): (2, "unknown algorithm 'gspx'"),
    ("eval", "katgym/Arithmetic-v1", "--policy", "hf:./nowhere"): (2, "no folder './nowhere'"),
}
CHILD = """
import contextlib, io, json, sys
from katgym.cli.main import main
found = []
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = main(arguments)
    found.append([code, told.getvalue(), sorted({"torch", "transformers"} & set(sys.modules))])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_no_mistake_waits_for_torch(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([list(arguments) for arguments in CASES]),
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (arguments, (code, words)), (found, told, loaded) in zip(
        CASES.items(), json.loads(done.stdout), strict=True
    ):
        assert (found, loaded) == (code, []), (arguments, told)
        assert words in " ".join(told.split()), arguments


@pytest.mark.slow
def test_a_missing_file_costs_no_more_than_twice_the_help(tmp_path: Path) -> None:
    def cpu_s(*arguments: str) -> float:
        def children_s() -> float:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        before = children_s()
        command = [sys.executable, "-m", "katgym", "train", *arguments]
        subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=300)
        return children_s() - before

    missing = min(cpu_s("sft", "missing.toml") for _ in range(2))
    assert missing < 2 * max(cpu_s("--help") for _ in range(2))
