"""Steps of a trainer with compiled layers beside one without: a JSON line for each step of both.

    PYTHONPATH=tests/shared python tests/trainer/compiled_process.py '{"lora_rank": 4}'

In a process of its own, as torch's compiler imports setuptools, which refuses to be imported after
Python's own distutils: whether a test before this one did that is not what is asked here.
"""

from __future__ import annotations

import json
import sys

from tiny_qwen import FAST, supervised, tiny_qwen

from katgym_trainer.trainer import Trainer

NAMES = ("train/loss", "train/grad_norm")
SIZES = (2, 4, 3)


def main() -> None:
    """Print [of plain layers, of compiled ones] each step, and how many layers were compiled."""
    more = json.loads(sys.argv[1])
    plain = Trainer(tiny_qwen(), "sft", args={**FAST, **more})
    compiled = Trainer(tiny_qwen(), "sft", args={**FAST, **more, "should_compile": True})
    for size in SIZES:
        metrics = [trainer.step_rows(supervised()[:size]) for trainer in (plain, compiled)]
        print(json.dumps([[found[name] for name in NAMES] for found in metrics]))
    layers = [m for n, m in compiled.model.named_modules() if n.endswith(("layers.0", "layers.1"))]
    print(sum(layer._compiled_call_impl is not None for layer in layers))


if __name__ == "__main__":
    main()
