"""Weights as handles of memory on a GPU, for another process on the same one.

Not here: when servers are sent them (`ipc_sync.py`).
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor


def ipc_handles(named: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
    """Return what vLLM's route for weights takes: names, dtypes, shapes, and pickled handles.

    named: on a GPU and contiguous; the caller holds them until the reader has copied them, for a
    handle does not keep its memory alive. A handle is for one reader.
    """
    handles = []
    for _, tensor in named:
        gpu = str(torch.cuda.get_device_properties(tensor.device).uuid)
        handles.append({gpu: reduce_tensor(tensor)[1]})  # type: ignore[no-untyped-call]  # torch
    return {
        "names": [name for name, _ in named],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        "shapes": [list(tensor.shape) for _, tensor in named],
        "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
    }
