"""Settings that fit the file of `katgym train rl` to a machine: `--preset NAME`.

They stand before those of `--set`, which may replace them. No GPU preset was run on a GPU: their
sizes are those that docs/guides/train-lora.md computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRESETS: Mapping[str, Sequence[str]] = {
    "cpu": (
        'policy.uri=""',
        "policy.server_args=[]",
        "policy.servers=[]",
        "policy.max_tokens=64",
        "policy.max_context_tokens=512",
        "rollouts.num_groups=4",
        "rollouts.max_staleness=0",
        "train.num_steps=12",
        "train.learning_rate=5e-4",
        'train.dtype="float32"',
        "train.should_checkpoint_activations=false",
        "train.max_tokens=4096",
        "evaluate.every_steps=6",
        "evaluate.num_tasks=32",
        "checkpoint.every_steps=6",
    ),
    "gpu-24": (
        'policy.server_args=["--gpu-memory-utilization", "0.45"]',
        "rollouts.max_concurrency=32",
        "train.max_tokens=8192",
    ),
    "gpu-80": (
        'policy.server_args=["--gpu-memory-utilization", "0.4"]',
        "rollouts.max_concurrency=64",
        "train.max_tokens=16384",
    ),
}
"""Name -> settings: `cpu` for a tiny model in this process, to rehearse; `gpu-24` and `gpu-80` for
a GPU of so many GiB that a vLLM server shares with the trainer."""
