"""The check after a sync: server and trainer must give the same tokens the same log-probability.

A fixed sequence is scored by both. A server with adapters instead samples after the sequence's
first tokens, and the trainer scores that: `prompt_logprobs` of vLLM 0.32 kill the engine of such a
server while it samples anything else.
TODO(vllm>=0.33): see whether it still does.

The check finds weights that did not arrive, arrived in part or under another name. It does not find
an error smaller than its tolerance: in bfloat16 that hides a sync which left out one small step.

Not here: when it runs (`weight_sync.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from katgym.errors import InfrastructureError, UsageError
from katgym.vllm_server.control import VllmControl
from katgym.vllm_server.token_api import TokenRequest
from katgym.vllm_server.token_client import TokenClient
from katgym_trainer.weight_sync.served_weights import ServedModel

_NUM_PROMPT = 8
"""Tokens of the sequence that a server with adapters samples after."""

_TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.5}
"""Largest difference of a token's log-probability, by the trainer's dtype."""


class WeightSyncError(InfrastructureError):
    """A server's weights are not the trainer's; the text has both numbers and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """What is scored, and how close it has to be."""

    token_ids: Sequence[int] = ()
    """The sequence; empty draws `num_tokens` ids of the vocabulary, always the same ones."""
    num_tokens: int = 48
    tolerance: float = 0.0
    """Largest difference of a log-probability; 0 takes 1e-4 in float32, 0.05 in float16 and 0.5
    in bfloat16, whichever the trainer's model has."""

    def __post_init__(self) -> None:
        if self.num_tokens < 2 or len(self.token_ids) == 1:
            raise UsageError("a probe scores at least 2 tokens")
        if self.tolerance < 0:
            raise UsageError(f"tolerance is >= 0, got {self.tolerance!r}")


class Probe:
    """The check for one model; made before a sync, so that the trainer scores while servers sample.

    It keeps what the model scores then; adapters, too, which the trainer may train on meanwhile.
    """

    def __init__(self, config: ProbeConfig, model: Any) -> None:
        served = ServedModel.of(model)
        self.model = served.kept() if served.can_be_kept else served
        self.token_ids = list(config.token_ids)
        if not self.token_ids:
            draw = random.Random(0)
            self.token_ids = [draw.randrange(served.vocab_size) for _ in range(config.num_tokens)]
        self.logprobs = served.scores(self.token_ids)
        self.tolerance = config.tolerance or _TOLERANCES.get(served.dtype, 1e-4)

    async def check(self, control: VllmControl, served_name: str) -> float:
        """Return a server's largest difference; raises `WeightSyncError` if it is too large.

        served_name: the model to ask the server for.
        """
        client = TokenClient(control.http)
        abilities, cards = await asyncio.gather(control.abilities(), control.models())
        if abilities.has_lora_updates or any(card.get("parent") for card in cards.values()):
            # Both sides' log-probabilities of what the server samples.
            prompt = self.token_ids[:_NUM_PROMPT]
            request = TokenRequest(
                model=served_name,
                prompt_ids=prompt,
                max_tokens=len(self.token_ids),
                seed=0,
            )
            sampled = (await client.generate(request))[0]
            all_ids = [*prompt, *sampled.token_ids]
            here = (await asyncio.to_thread(self.model.scores, all_ids))[len(prompt) - 1 :]
            there = sampled.policy_logprobs
        else:
            here = self.logprobs
            there = await client.score(served_name, self.token_ids)
        return compare(client.name, here, there, self.tolerance)


def compare(
    server: str, trainer_logprobs: Sequence[float], policy_logprobs: Sequence[float], limit: float
) -> float:
    """Return the largest difference; raises `WeightSyncError` when it is over the limit."""
    pairs = list(zip(trainer_logprobs, policy_logprobs, strict=True))
    # A NaN on either side is no agreement.
    at = max(range(len(pairs)), key=lambda i: _difference(*pairs[i]))
    found = _difference(*pairs[at])
    if found <= limit:
        return found
    ours, theirs = pairs[at]
    raise WeightSyncError(
        f"the weights of {server} are not the trainer's: token {at + 1} of the probe has"
        f" log-probability {ours:.6f} here and {theirs:.6f} there, a difference of {found:.2g}"
        f" where {limit:.2g} is allowed. Do not train on what it samples: sync again or restart it."
        " The causes known are tied embeddings of which the LM head was not sent, a model, dtype or"
        " quantization other than the trainer's, and an adapter other than the one that is served"
    )


def _difference(a: float, b: float) -> float:
    found = abs(a - b)
    return found if found == found else float("inf")
