"""Honest runs that the verification tests begin with, and players that are not what they claim.

Not here: changing a run (`tests/shared/forgery.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from byte_tokenizer import byte_tokenizer
from forgery import Forgery
from random_qwen import random_qwen

import katgym
from katgym import Rollout, Sampling
from katgym.environment.messages import normalize_action
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.evaluation.verification.report import VerifyReport
from katgym.evaluation.verification.verify import VerifyConfig, verify_run
from katgym.policies.base import EpisodeContext, Policy, Session
from katgym.policies.hf.hf_policy import HfPolicy
from katgym.policies.token_policy import Generated, TokenPolicy, TokenSession

_NUM_FORGED = 4
"""Rollouts that a forger plays again: fewer than there are."""
ARITHMETIC, HUNT = "katgym/Arithmetic-v1", "katgym/TreasureHunt-v1"


def play_run(
    folder: Path, policy: str, envs: Sequence[str] = (ARITHMETIC, HUNT), **more: Any
) -> Path:
    """Evaluate three tasks, each twice, into a folder."""
    config = {"num_tasks": 3, "group_size": 2, "seed": 4, **more}
    asyncio.run(evaluate(EvalConfig(envs=tuple(envs), policy=policy, **config), folder))
    return folder


def verify(folder: Path, **config: Any) -> VerifyReport:
    """Verify a folder."""
    return asyncio.run(verify_run(folder, VerifyConfig(**config)))


def tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write a model of two random layers with a tokenizer of bytes."""
    model = random_qwen(
        seed=seed, vocab_size=288, max_position_embeddings=2048, initializer_range=0.3
    )
    model.eval().save_pretrained(folder)
    byte_tokenizer(system="You are small.").save_pretrained(folder)
    return folder


def play_again(
    forged: Forgery,
    player: Policy,
    claimed: HfPolicy,
    *,
    sampling: Sampling | None = None,
    seed_shift: int = 0,
    should_rescore: bool = True,
) -> None:
    """Put what a player does in the place of the first rollouts, told as the claimed policy's.

    should_rescore: the log-probs told are those of the claimed weights.
    """  # fmt: skip
    for index, rollout in enumerate(forged.rollouts[:_NUM_FORGED]):
        played = asyncio.run(
            katgym.run_rollout(
                katgym.make(rollout.env_id, **rollout.env_kwargs),
                player,
                seed=rollout.seed,
                task_id=rollout.task_id,
                split=rollout.split,
                attempt=rollout.attempt + seed_shift,
                sampling=sampling or rollout.sampling,
            )
        )
        turns = [msgspec.structs.replace(turn, model=rollout.policy) for turn in played.turns]
        told = replace(
            played,
            policy=rollout.policy,
            attempt=rollout.attempt,
            sampling=rollout.sampling,
            sampling_seed=rollout.sampling_seed,
            turns=turns,
        )
        forged.change(index, rescored(told, claimed) if should_rescore else told)


def rescored(rollout: Rollout, policy: HfPolicy) -> Rollout:
    """Return a rollout whose log-probs are those of a policy's weights."""
    turns = []
    for index, turn in enumerate(rollout.turns):
        if turn.tokens is None:
            turns.append(turn)
            continue
        prompt, sampled = rollout.prompt_ids(index), list(turn.tokens.completion_ids)
        with torch.inference_mode():
            logits_TV = policy.model(input_ids=torch.tensor([prompt + sampled])).logits[0].float()
        temperature = (rollout.sampling or Sampling()).temperature or 1.0
        logprobs_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
        own = [
            float(logprobs_TV[len(prompt) - 1 + place, token])
            for place, token in enumerate(sampled)
        ]
        tokens = msgspec.structs.replace(turn.tokens, policy_logprobs=own)
        turns.append(msgspec.structs.replace(turn, tokens=tokens))
    return replace(rollout, turns=turns)


class TokenOracle(TokenPolicy):
    """Says the env's own solution in the tokens of a model, as if that had sampled them."""

    def __init__(self, model: HfPolicy) -> None:
        self.name = model.name
        self.renderer, self.tokenizer = model.renderer, model.tokenizer
        self.max_context_tokens, self.vocab_size = model.max_context_tokens, model.vocab_size
        self._context: EpisodeContext | None = None

    def start(self, context: EpisodeContext) -> Session:
        self._context = context
        return TokenSession(self, context)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        assert self._context is not None
        text = f"Answer: {self._context.env.task.answer}"
        if self._context.env.task.answer is None:
            text = normalize_action(self._context.env.oracle_action())["content"]
        stop = min(self.renderer.get_stop_token_ids())
        ids = [*self.tokenizer.encode(text)[: max_tokens - 1], stop]
        return Generated(token_ids=ids, policy_logprobs=[-0.1] * len(ids))
