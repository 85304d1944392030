"""A training step of the real `Trainer` on a card that is not there.

    counts = count_step(StepRequest.of_tokens("Qwen/Qwen3-0.6B", 20_480, card="h100"))

The model has its configuration's shape and no weights. The process is one of its own
(`step_process.py`), in which `load_device_guard` came before torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from katgym.errors import UsageError
from katgym.policies.model_source import model_source
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.fake_card import FakeCard
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_request import StepRequest
from katgym_trainer.models.preparation import DTYPES
from katgym_trainer.packing.packer import pack
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.row import Row
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig

T = TypeVar("T")


class _FirstRank(Ranks):
    """The first of several ranks, which all tell the same, each of its own rows."""

    def __init__(self, num: int, num_rows: int) -> None:
        """num_rows: of each rank."""
        super().__init__(0, num, mesh=init_device_mesh("cuda", (num,)))
        self._num_rows = num_rows

    def gather(self, value: T) -> list[T]:
        if not (isinstance(value, dict) and all(isinstance(key, int) for key in value)):
            return [value] * self.num
        starts = range(0, self.num * self._num_rows, self._num_rows)
        return [type(value)((start + place, v) for place, v in value.items()) for start in starts]

    def share_first(self, value: T) -> T:
        return value


def make_rows(request: StepRequest, vocabulary: int, *, card: int = 0) -> list[Row]:
    """Return the rows of one card; they share nothing with another's.

    The first token of every answer is another.
    """
    prompt = [(card + token) % vocabulary for token in range(request.prompt_tokens)]
    size = request.group_size or len(request.answer_tokens)
    return [
        Row(
            prompt + [(number + token) % vocabulary for token in range(num)],
            [0] * len(prompt) + [1] * num,
            [-math.log(vocabulary)] * (len(prompt) + num),
            1.0 - 2.0 * (number % 2),
            group=f"{card}-{number // size}",
        )
        for number, num in enumerate(request.answer_tokens)
    ]


def count_step(request: StepRequest) -> StepCounts:
    """Return what a request's last step asks of the card, or its rehearsal.

    Raises what a step would, and `UsageError` for a model that is not there.
    """
    settings = TrainerConfig.of(request.settings)
    config = _load_config(request.model)
    vocabulary = config.get_text_config().vocab_size
    rows = make_rows(request, vocabulary)
    num = request.num_cards
    everyone = [row for card in range(num) for row in make_rows(request, vocabulary, card=card)]
    with FakeCard(find_card(request.card), num=num) as fake, _ranks(num, len(rows)) as ranks:
        model = _make_model(config, DTYPES[settings.dtype])
        fake.clear()
        trainer = Trainer(model, request.algorithm, args=settings, ranks=ranks)
        if not request.num_steps:
            trainer.rehearse()
        for _ in range(request.num_steps):
            gc.collect()  # what a cycle holds would count
            fake.clear()
            trainer.step_rows(everyone)
        counts = fake.counts()
        trainer.close()
    if not rows:
        return counts
    limits: Any = {"max_tokens": settings.max_tokens, "should_split": settings.should_split}
    pairs = sum(forest.stats.num_pairs for forest in pack(rows, **limits))
    forwards = 2 if settings.should_checkpoint_activations else 1
    operations = pairs * _operations_per_pair(config, forwards)
    attention_s = operations / find_card(request.card).half_per_s
    return dataclasses.replace(counts, attention_s=attention_s)


def _load_config(name: str) -> Any:
    try:
        return AutoConfig.from_pretrained(model_source(name))
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot load the configuration of model {name!r}: {e}") from e


def _make_model(config: Any, dtype: torch.dtype) -> Any:
    try:
        with torch.device("cuda"):
            made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    except ValueError as e:
        raise UsageError(f"cannot make a model of this configuration: {e}") from e
    return made.train()


def _operations_per_pair(config: Any, forwards: int) -> float:
    """Return what attention's products take for each (query, key): 4 forward, 10 backward.

    Layers that see a window are left out.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", 0)
    size = getattr(text, "head_dim", None) or text.hidden_size // max(1, heads)
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return float((4 * forwards + 10) * heads * size * [*kinds].count("full_attention"))


@contextlib.contextmanager
def _ranks(num: int, num_rows: int) -> Iterator[Ranks]:
    """Give the first of several ranks of so many rows, between which nothing goes anywhere."""
    if num == 1:
        yield ALONE
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num)
    try:
        yield _FirstRank(num, num_rows)
    finally:
        dist.destroy_process_group()
