"""Ends a training whose gradients are not finite any more.

Not here: the norm (`optimizers.py`), leaving an update out (`trainer.py`).
"""

from __future__ import annotations

import logging
import math

from katgym.errors import KatgymError

logger = logging.getLogger(__name__)


class NonFiniteGradientError(KatgymError):
    """Too many updates in a row had a gradient that is not finite; the weights are those before."""


class NormWatch:
    """Counts updates in a row that are left out."""

    def __init__(self, max_nonfinite_updates: int) -> None:
        self._most = max_nonfinite_updates
        self._num = 0

    def check(self, norm: float, num_steps: int) -> None:
        """Look at the norm of an update's gradient; `NonFiniteGradientError` after too many."""
        if math.isfinite(norm):
            self._num = 0
            return
        self._num += 1
        logger.warning(
            "step %d: the gradient's norm is %s; the update is left out", num_steps, norm
        )
        if self._num >= self._most:
            raise NonFiniteGradientError(
                f"the gradient was not finite in {self._num} updates in a row; the weights are"
                " those from before. Lower learning_rate, set dtype='float32', or raise"
                " max_nonfinite_updates"
            )
