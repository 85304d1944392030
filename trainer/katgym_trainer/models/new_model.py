"""A new model for a few environments: Qwen3's shape, random weights, a tokenizer of its own.

Small enough for two cores: where the vocabulary is made for the environments, a million weights
learn to act in them. Not here: its tokenizer (`new_tokenizer.py`), training it (`runs/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import katgym
from katgym.errors import UsageError
from katgym.evaluation.plan import parse_env
from katgym.play.seeding import derive_seed
from katgym.policies.rendering.chat_format import for_renderer
from katgym.system.sync import run_sync
from katgym_trainer.config.new_model_config import NewModelConfig
from katgym_trainer.models.new_tokenizer import common_lines, plain_tokenizer, train_tokenizer
from katgym_trainer.models.pretrained import save_model
from katgym_trainer.saving.atomic_folders import check_is_free

PLAYERS = ("oracle", "random")
"""Whose episodes the vocabulary is made of; `random` meets the tools' errors as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """What was written.

    Example:
        {"folder": "models/tiny", "num_parameters": 918016, "vocab_size": 663, "num_lines": 21,
         "longest_tokens": 198}
    """

    folder: str
    num_parameters: int
    vocab_size: int
    num_lines: int
    """Lines of the envs' prompts that are one token each."""
    longest_tokens: int
    """Tokens of the oracle's longest episode."""


def new_model(path: Path, envs: Sequence[str], config: NewModelConfig | None = None) -> NewModel:
    """Write a model and its tokenizer as a folder that `from_pretrained` loads.

    envs: env ids, each with ?name=value&... if needed; their text makes the vocabulary.

    The same arguments write the same bytes. Raises `UsageError` for a folder that is not empty, an
    env that cannot be played, a vocabulary that is too small and episodes that are too long.
    """
    config = config or NewModelConfig()
    check_is_free(path)
    if not envs:
        raise UsageError("a new model needs the env ids that its vocabulary is made for")
    episodes: list[tuple[str, str]] = []
    lines: set[str] = set()
    for env in envs:
        played = run_sync(_episodes(env, config))
        # The lines that a policy reads in most episodes of an env; it wrote none of them.
        turns = (text.split("<|im_start|>") for _, text in played)
        lines |= set(
            common_lines(
                "".join(turn for turn in of_episode if not turn.startswith("assistant\n"))
                for of_episode in turns
            )
        )
        episodes += played
    texts = [text for _, text in episodes]
    tokenizer = train_tokenizer(texts, lines, vocab_size=config.vocab_size)
    solved = [text for player, text in episodes if player == "oracle"]
    longest = max(len(tokenizer.encode(text)) for text in solved)
    if longest > config.max_positions:
        raise UsageError(
            f"the oracle's longest episode has {longest} tokens, max_positions is"
            f" {config.max_positions!r}: raise it, or raise vocab_size"
        )
    model = _model(config, tokenizer)
    save_model(model, tokenizer, path, is_merged=True)
    return NewModel(
        folder=str(path),
        num_parameters=model.num_parameters(),
        vocab_size=len(tokenizer),
        num_lines=len(lines),
        longest_tokens=longest,
    )


def _model(config: NewModelConfig, tokenizer: Any) -> Any:
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.intermediate or 3 * config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        initializer_range=config.init_std,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Qwen3ForCausalLM(shape)


async def _episodes(text: str, config: NewModelConfig) -> list[tuple[str, str]]:
    """Play an env's train tasks with every player; return players and rendered conversations."""
    env_id, arguments = parse_env(text)
    env = katgym.make(env_id, **arguments)
    plain = plain_tokenizer()
    found = []
    try:
        for number in range(config.num_tasks):
            seed = derive_seed("new-model", config.seed, number)
            for player in PLAYERS:
                rollout = await katgym.run_rollout(env, player, seed=seed, split="train")
                said = plain.apply_chat_template(
                    for_renderer(rollout.messages),
                    tools=list(rollout.tools) or None,
                    tokenize=False,
                )
                found.append((player, said))
    except NotImplementedError as e:
        raise UsageError(f"env {text!r}: {e}") from e
    finally:
        await env.aclose()
    return found
