"""Kernels and the trainer's core run where gymnasium, transformers and peft are not installed."""

from __future__ import annotations

import subprocess
import sys

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
