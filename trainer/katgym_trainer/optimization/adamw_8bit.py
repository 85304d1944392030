"""AdamW whose moments are 8-bit codes in blocks of 256, each with a scale (torchao's).

See arXiv 2110.02861. Tensors of fewer than 4,096 numbers, or of no multiple of 256, keep float32
moments. On a GPU torchao compiles the update, one kernel a shape; that was not run. On the CPU it
runs uncompiled, as a compilation takes 10 s a shape there. Not here: when it is stepped
(`optimizers.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchao import optim


class AdamW8bit(optim.AdamW8bit):  # type: ignore[misc]  # torchao may not be installed
    """torchao's, which also runs where there is no compiler."""

    def step(self, closure: Any = None) -> Any:
        is_on_cpu = all(p.device.type == "cpu" for g in self.param_groups for p in g["params"])
        with torch.compiler.set_stance("force_eager" if is_on_cpu else "default"):
            return super().step(closure)

    def make_moment(self, parameter: Tensor, is_signed: bool) -> Tensor:
        """Return the zeros that a parameter's mean (signed) or mean square starts from."""
        found: Tensor = self._new_buffer(parameter, is_signed)
        return found
