"""Memory that a trainer's rehearsal takes on a card, beside what was predicted without one.

Not here: the rehearsal (`Trainer.rehearse`), predictions of steps (`dry_run/card_prediction.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from katgym.errors import InfrastructureError
from katgym_trainer.fake_card.cards import name_of
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_process import StepFailure, counting
from katgym_trainer.fake_card.step_request import StepRequest, countable
from katgym_trainer.trainer_config import TrainerConfig


@contextlib.contextmanager
def compared_peak(
    model: str, algorithm: str, config: TrainerConfig, say: Callable[[str], None]
) -> Iterator[None]:
    """Say what making a trainer and its rehearsal, within, took of the card, and the prediction.

    Counted is what comes on top of what was there before: the weights. The prediction is made
    meanwhile. Nothing is said where no card of `CARDS` is.
    """
    card = name_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if card is None:
        yield
        return
    request = StepRequest(
        model=model, prompt_tokens=0, answer_tokens=(), algorithm=algorithm,
        settings=countable(config).to_json(), card=card, num_steps=0,
    )  # fmt: skip
    with counting([request]) as found:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield
        taken = torch.cuda.max_memory_allocated() - before
        try:
            (counts,) = found
        except InfrastructureError as e:
            counts = StepFailure(kind=type(e).__name__, error=str(e))
    told = f"the rehearsal took {taken / 2**20:,.1f} MiB beside the weights"
    if isinstance(counts, StepCounts):
        say(f"{told}, {(counts.peak_bytes - counts.begun_bytes) / 2**20:,.1f} were predicted")
    else:
        say(f"{told}; it could not be predicted: {counts.kind}: {counts.error}")
