"""Kernels and the trainer's core run where gymnasium, transformers and peft are not installed.

Then: what a run frees is kept for its next step; mistakes of a config are told without torch.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import katgym_trainer

CORE = """
import sys
for name in ("gymnasium", "transformers", "peft", "renderers", "msgspec"):
    sys.modules[name] = None  # importing it fails
sys.path.insert(0, sys.argv[1])
from tiny_model import TinyModel
from katgym_trainer import Row, Critic, LogprobCache, forward_backward, loss, pack, prune
model = TinyModel()
forests = pack([Row([1, 2, 3], [0, 1, 1], [0, -1, -2], 0.5)], max_tokens=2, should_split=True)
print(forward_backward(model, forests, loss("dapo"))["num_edges"])
assert "katgym" not in sys.modules
"""


@pytest.mark.slow
def test_the_core_needs_torch_and_numpy_alone() -> None:
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", CORE, folder], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n"


def test_every_public_name_is_there() -> None:
    for name in katgym_trainer.__all__:
        assert getattr(katgym_trainer, name) is not None
    assert sorted(set(katgym_trainer.__all__)) == sorted(katgym_trainer.__all__)


SCRIPT = """
import resource
import sys
import threading

import torch

from katgym_trainer.runs.process.freed_memory import keep_freed_memory

if "keep" in sys.argv:
    print(keep_freed_memory())

SIZES = (10, *[1] * 40)
# one that is never kept of itself, and more than a heap of a thread holds

def work():
    for step in range(24):
        tensors = [torch.ones(n << 20) for n in SIZES]
        del tensors
        if step == 18:  # at first more is asked for, as small blocks lie between
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if "thread" in sys.argv:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


def told(*args: str, **env: str) -> list[str]:
    """Return the lines the script prints."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args],
        capture_output=True, text=True, check=True, env={**os.environ, **env},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_are_not_asked_for_again() -> None:
    for where in ("main", "thread"):
        is_kept, num_faults = told("keep", where)
        assert is_kept == "True"
        assert int(num_faults) < 1000, where  # 10,240 and more if nothing is done


@pytest.mark.slow
def test_what_the_environment_says_stays() -> None:
    assert told("keep", MALLOC_TRIM_THRESHOLD_="100000")[0] == "False"


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
