"""Devices as tensors tell them, so that two names of one device are equal.

To PyTorch `torch.device("cuda")` is not `cuda:0`, nor `cpu:0` the `cpu`, and no tensor lies on
"cuda". Whatever stores a device, or compares one, takes it from here. Not here: what can run on one
(`triton_check.py`).
"""

from __future__ import annotations

import torch


def device_of_tensors(device: torch.device | str) -> torch.device:
    """Return what a tensor on this device tells as its own: "cpu" for "cpu:0".

    Without an index it is the calling thread's current one, `cuda:1` for "cuda" after
    `torch.cuda.set_device(1)`; another thread has another. Raises `RuntimeError` for a device that
    is not there.
    """
    return torch.empty(0, device=device).device
