"""Loading and saving models of transformers without its progress bars, which tear our own output.

Not here: bars of downloads, which are huggingface_hub's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging as bars


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Have transformers show no bar until the block ends; then its setting is what it was.

    The setting is the process's: bars of other threads are not shown either meanwhile.
    """
    before = bars.set_tqdm_hook(lambda _, args, kwargs: bars.EmptyTqdm(*args, **kwargs))  # type: ignore[no-untyped-call]  # transformers
    try:
        yield
    finally:
        bars.set_tqdm_hook(before)
